"""Each rule between fields has a manifest that keeps it and one that breaks it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from lorarl_api.load import faults, load_job
from lorarl_api.rules import Rule, Ruled, broken_rules
from lorarl_api.v1alpha1 import RULES_LATER, LoRARLJob, LoRARLJobSpec
from unit.contract.cases import CASES, Case
from unit.contract.manifests import SFT, manifest


def rules_of(model: type[BaseModel]) -> Iterator[Rule]:
    if issubclass(model, Ruled):
        yield from model.rules
    for field in model.model_fields.values():
        for part in parts_of(field.annotation):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from rules_of(part)


def parts_of(annotation: Any) -> Iterator[Any]:
    """A type, and the types that it is made of: those of list[A] | None are itself, list[A], A and None."""
    yield annotation
    for part in get_args(annotation):
        yield from parts_of(part)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_broken_rule_names_the_field_and_the_fix(case: Case) -> None:
    found = faults(manifest(case.bad))
    assert [fault.path for fault in found if case.hint in fault.hint] == [case.field], found
    assert faults(manifest(case.good)) == []


def test_each_rule_has_a_case() -> None:
    jobs = [LoRARLJob.model_validate(manifest(case.bad), context=RULES_LATER) for case in CASES]
    broken = {rule for job in jobs for _, rule in broken_rules(job)}
    assert len(CASES) >= 60
    assert len(broken) > 40
    assert set(rules_of(LoRARLJob)) == broken


def test_defaults_of_earlier_releases_stay_valid_in_stored_objects() -> None:
    """The API server wrote them into every job, sft or not, and they mean what they did."""
    written = {
        "spec.rollout.gpuMemoryFraction": 0.5,
        "spec.rollout.tensorParallelSize": 1,
        "spec.trainer.tensorParallelSize": 1,
        "spec.trainer.recompute": "none",
    }
    assert faults(manifest(written)) == faults(manifest(SFT | written)) == []


def test_each_rule_reads_as_a_sentence() -> None:
    for rule in rules_of(LoRARLJob):
        assert str(rule) == f"must {rule.must}. {rule.hint}"
        assert rule.must.split()[0] in {"be", "contain", "differ", "divide", "end", "have", "not"}, rule
        assert rule.hint[0].isupper() and rule.hint.endswith("."), rule


def test_a_job_that_breaks_a_rule_cannot_be_created_in_python_either() -> None:
    with pytest.raises(ValidationError, match="Lower warmupSteps"):
        LoRARLJobSpec.model_validate(manifest({"spec.trainer.warmupSteps": 1000})["spec"])


def test_all_broken_rules_are_reported_at_once() -> None:
    document = manifest(
        {"spec.reward": None, "spec.trainer.warmupSteps": 1000, "spec.model.uri": "out", "metadata.name": "A"}
    )
    assert {fault.path for fault in faults(document)} == {
        "spec.reward",
        "spec.trainer.warmupSteps",
        "spec.model.uri",
        "metadata.name",
    }


def test_a_rule_that_reads_an_absent_field_raises() -> None:
    rule = Rule("reward", "self.reward.type == 'exact'", "be set", "Add a reward.")
    with pytest.raises(RuntimeError, match="returns no boolean"):
        rule.holds({})


@pytest.mark.parametrize(
    "part",
    [
        pytest.param({"annotations": {"": "a", "\0": "b"}}, id="the name of a property"),
        pytest.param({"annotations": {"a": "\0", "b": "\0\0"}}, id="a value"),
        pytest.param({"finalizers": [{"x\0y": 1, "x\0z": 2}]}, id="in a list"),
    ],
)
def test_rules_are_evaluated_where_a_text_has_a_nul(part: dict[str, Any]) -> None:
    """The API server takes it within what has no schema, and so does a job. Before, the operator stopped at it."""
    overrides = {"spec.cluster.podTemplateOverrides": {"worker": {"metadata": part}}}
    assert {fault.path for fault in faults(manifest(overrides))} <= {"spec.cluster.podTemplateOverrides"}
    assert Rule("name", "size(self.name) == 3", "have three letters", "").holds({"name": "a\0b"})


def test_defaults_that_depend_on_the_rest_of_the_manifest() -> None:
    job = load_job(json.dumps(manifest())).spec
    assert (job.precision, job.rollout.logprob_tolerance, job.workers_per_node, job.world_size, job.on_gpu) == (
        "fp32",
        None,
        1,
        1,
        False,
    )
    assert (job.algorithm.effective_group_size, job.algorithm.effective_clip_range) == (8, 0.2)
    assert (job.algorithm.effective_kl_coefficient, job.algorithm.effective_updates_per_step) == (0.0, 1)

    gpus = load_job(json.dumps(manifest({"spec.cluster": {"gpusPerNode": 4, "nodes": 2}}))).spec
    assert (gpus.precision, gpus.rollout.logprob_tolerance, gpus.workers_per_node, gpus.world_size, gpus.on_gpu) == (
        "bf16",
        None,
        4,
        8,
        True,
    )

    split = load_job(
        json.dumps(manifest({"spec.trainer.tensorParallelSize": 2, "spec.rollout.logprobTolerance": 0.5}))
    ).spec
    assert (split.workers_per_node, split.rollout.logprob_tolerance) == (2, 0.5)

    shared = load_job(json.dumps(manifest({"spec.trainer": {"tensorParallelSize": 2, "contextParallelSize": 3}}))).spec
    assert shared.workers_per_node == 6

    open_fields = (gpus.trainer.tensor_parallel_size, gpus.rollout.tensor_parallel_size, gpus.trainer.recompute)
    assert (*open_fields, gpus.rollout.gpu_memory_fraction) == (None,) * 4  # planning chooses them

    claims = {
        "spec.model.uri": "pvc://models/a",
        "spec.data.train.uri": "pvc://data/a.csv",
        "spec.data.eval": {"uri": "pvc://data/b.csv"},
    }
    spec = load_job(json.dumps(manifest(claims))).spec
    assert (spec.claims, spec.checkpoint_claim) == (["data", "models"], None)
    assert (job.claims, job.checkpoint_claim) == ([], None)
    spec = load_job(json.dumps(manifest({"spec.checkpoint.uri": "pvc://a/b", "spec.adapter.initFrom": "pvc://c"}))).spec
    assert (spec.claims, spec.checkpoint_claim) == (["a", "c"], "a")

    sft = load_job(json.dumps(manifest({"spec.algorithm": {"type": "sft"}, "spec.reward": None}))).spec
    assert sft.algorithm.effective_group_size == 1
