"""Properties of loading: any text or document gives a job or faults, and a job survives a round trip."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import lorarl
import lorarl_api
import lorarl_trainer
from lorarl_api.faults import in_yaml
from lorarl_api.load import Fault, ManifestError, faults, load_job
from lorarl_api.render import render
from lorarl_api.schedules.manifest import schedule_faults
from lorarl_api.sweeps.manifest import sweep_faults
from lorarl_api.validate import validate_files
from lorarl_api.yaml_reader import read_value
from lorarl_api.yaml_writer import to_yaml
from unit.contract.cases import CASES
from unit.contract.manifests import changed, manifest
from unit.contract.schedule_cases import schedule
from unit.contract.sweep_cases import sweep

# Any YAML value. The keys include those of the contract, so that values reach deep into the models.
_KEYS = st.sampled_from(
    [
        "apiVersion",
        "kind",
        "metadata",
        "spec",
        "name",
        "model",
        "adapter",
        "uri",
        "rank",
        "targetModules",
        "data",
        "train",
        "reward",
        "type",
        "x",
    ]
)
_ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["grpo", "hf://a/b", "LoRARLJob"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS | st.text(max_size=5), inner, max_size=6),
    max_leaves=20,
)


@given(_ANYTHING)
def test_no_document_causes_a_crash(document: Any) -> None:
    assert all(isinstance(fault, Fault) for fault in faults(document))


@given(
    st.sampled_from([case.good for case in CASES]),
    _ANYTHING,
    st.sampled_from(["spec", "spec.model", "spec.adapter.rank", "spec.data.train", "metadata"]),
)
def test_a_wrong_value_anywhere_is_a_fault_or_fine(changes: dict[str, Any], value: Any, where: str) -> None:
    for fault in faults(changed(manifest(changes), {where: value})):
        assert fault.path
        assert fault.got
        assert fault.expected
        assert fault.hint


_ODD = (None, True, "x", [], [[]], {}, {"x": []}, [None], 10**30, -(10**400), math.nan, math.inf)
_OF_SWEEPS = (
    *("kind", "metadata", "metadata.name", "spec", "spec.over", "spec.trials", "spec.objective", "spec.stopping"),
    *("spec.template", "spec.template.spec", *(f"spec.template.spec.{name}" for name in manifest()["spec"])),
    *("spec.template.spec.checkpoint.keepBest", "spec.template.spec.data.evals", "spec.template.spec.trainer"),
)
_OF_SCHEDULES = ("spec.schedule", "spec.timeZone", "spec.continueFrom", *_OF_SWEEPS)


@pytest.mark.parametrize("value", _ODD, ids=repr)
def test_an_odd_value_in_a_sweep_or_a_schedule_is_a_fault_or_fine(value: Any) -> None:
    for place in _OF_SWEEPS:
        for metric in ("best", "evalScore"):
            odd = changed(sweep({"spec.objective": {"metric": metric}}), {place: value})
            assert all(isinstance(fault, Fault) for fault in sweep_faults(odd))
    for name in ("values", "path"):
        axis = {"path": "spec.adapter.rank", "values": [8]} | {name: [value]}
        assert all(isinstance(fault, Fault) for fault in sweep_faults(sweep({"spec.over": [axis]})))
    for place in _OF_SCHEDULES:
        assert all(isinstance(fault, Fault) for fault in schedule_faults(changed(schedule(), {place: value})))


@pytest.mark.parametrize("kind", ["[]", "{}", "[LoRARLSweep]", "7"])
def test_validate_reports_a_kind_that_is_no_name(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path := tmp_path / "job.yaml").write_text(f"apiVersion: lorarl.io/v1alpha1\nkind: {kind}\n")
    assert validate_files([path]) == 1
    assert "expected LoRARLJob. Write kind: LoRARLJob" in capsys.readouterr().out


def test_a_large_number_is_a_fault_also_beside_another_one() -> None:
    pods = {"worker": {"spec": {"priority": 10**30}}}
    document = manifest({"spec.cluster.podTemplateOverrides": pods})
    assert [fault.path for fault in faults(document)] == ["spec.cluster.podTemplateOverrides.worker.spec.priority"]
    assert [fault.path for fault in faults(changed(document, {"spec.trainer": {"steps": 0}}))] == ["spec.trainer.steps"]


@given(st.text())
def test_no_text_causes_a_crash(text: str) -> None:
    try:
        load_job(text)
    except ManifestError as error:
        str(error).encode()


@settings(deadline=None)  # A busy machine sometimes takes longer.
@given(st.sampled_from(CASES))
def test_a_job_survives_being_written_and_read(case: Any) -> None:
    job = load_job(json.dumps(manifest(case.good)))
    assert load_job(job.model_dump_json(by_alias=True)) == job
    assert load_job(job.model_dump_json(by_alias=True, exclude_none=True)) == job


_TEXTS = (
    st.text()
    | st.from_regex(r"[-+]?[0-9][0-9_.eExob+-]{0,5}", fullmatch=True)
    | st.sampled_from(
        [
            "y",
            "N",
            "on",
            "Yes",
            "null",
            "~",
            "<<",
            "=",
            "09",
            "1e5",
            "0o17",
            "1_000",
            "12:30",
            "2026-01-31",
            ".inf",
            "a\x85b",
        ]
    )
)


@given(_TEXTS, st.booleans())
def test_a_text_stays_a_text_when_it_is_written(text: str, flow: bool) -> None:
    assert not text.isprintable() or read_value(in_yaml(text), "it") == text
    for value in (text, [text], {"a": text, "b": {"c": [text]}}):
        assert read_value(to_yaml(value, flow=flow), "it") == value
        assert yaml.safe_load(to_yaml(value, flow=flow)) == value


@pytest.mark.parametrize(("prompt", "answer"), [("x", "y"), ("n", "no"), ("1e5", "09"), ("on", "0o17")])
def test_a_job_whose_columns_look_like_other_values_survives_render(prompt: str, answer: str, tmp_path: Path) -> None:
    fields = {"uri": "file:a.jsonl", "promptField": prompt, "answerField": answer}
    document = manifest({"spec.data.train": fields, "metadata.labels": {"run": answer}})
    (path := tmp_path / "job.yaml").write_text(json.dumps(document))
    assert yaml.safe_load(rendered := render(path, None, ())) == document
    assert load_job(rendered) == load_job(path)


def test_manifests_are_written_in_one_way() -> None:
    folders = [Path(place.__file__).parent for place in (lorarl, lorarl_api, lorarl_trainer)]
    writing = {
        path.name for folder in folders for path in folder.rglob("*.py") if "yaml.safe_dump(" in path.read_text()
    }
    assert writing == {"crdgen.py"}, "use to_yaml: PyYAML leaves y, 09 and 1e5 without quotes"
