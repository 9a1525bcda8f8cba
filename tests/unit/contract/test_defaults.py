"""Defaults that the API server wrote into an object, beside what its user wrote."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from lorarl_api.defaults import explicit, knows, readable
from lorarl_api.load import documents, load_job
from lorarl_api.schema import job_schema
from unit.contract.cases import CASES
from unit.contract.manifests import manifest

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


def newer():
    """The schema of a newer CRD: a field in a group, a group, and a field of list entries, all with defaults."""
    schema = copy.deepcopy(job_schema()["properties"]["spec"])
    fields = schema["properties"]
    fields["rollout"]["properties"]["beams"] = {"type": "integer", "default": 1}
    fields["extra"] = {
        "type": "object",
        "default": {},
        "properties": {"a": {"type": "integer", "default": 1}, "b": {"type": "string"}},
    }
    fields["data"]["properties"]["evals"]["items"]["properties"]["judge"] = {"type": "string", "default": "none"}
    return schema


def whole(job):
    """The spec as the API server returns it, with its defaults."""
    return job.spec.model_dump(mode="json", by_alias=True, exclude_none=True)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_explicit_part_is_the_same_job(path):
    job = load_job(path)
    document = documents(path)[0]
    short = explicit(whole(job))
    assert load_job(json.dumps(document | {"spec": short})).spec == job.spec
    assert len(json.dumps(short)) <= len(json.dumps(document["spec"]))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_explicit_part_keeps_all_that_differs(case):
    document = manifest(case.good)
    job = load_job(json.dumps(document))
    assert load_job(json.dumps(document | {"spec": explicit(whole(job))})).spec == job.spec


def test_an_empty_group_that_was_asked_for_stays():
    assert explicit({"checkpoint": {"keepBest": {}}}) == {"checkpoint": {"keepBest": {}}}


def test_unknown_fields_with_their_default_are_left_out():
    entry = {"name": "gsm8k", "judge": "none"}
    spec = {"rollout": {"beams": 1, "topP": 0.9}, "extra": {"a": 1}, "data": {"evals": [entry]}}
    assert not knows(spec)
    assert readable(spec, newer()) == {"rollout": {"topP": 0.9}, "data": {"evals": [{"name": "gsm8k"}]}}
    assert knows(readable(spec, newer()))


@pytest.mark.parametrize(
    "spec",
    [
        {"rollout": {"beams": 4}},
        {"extra": {"a": 1, "b": "x"}},
        {"data": {"evals": [{"judge": "gpt"}]}},
        {"nowhere": 1},
    ],
)
def test_unknown_fields_that_someone_set_stay(spec):
    assert readable(spec, newer()) == spec
    assert not knows(readable(spec, newer()))


def test_without_a_schema_nothing_is_left_out():
    assert readable({"rollout": {"beams": 1}}, {}) == {"rollout": {"beams": 1}}


def test_keys_of_users_are_not_fields():
    spec = {"cluster": {"nodeSelector": {"beams": "1"}, "podTemplateOverrides": {"head": {"spec": {"beams": 1}}}}}
    assert knows(spec)
    assert readable(spec, newer()) == spec
