"""Properties of loading: any text or document gives a job or faults, and a job survives a round trip."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lorarl_api.load import Fault, ManifestError, faults, load_job
from lorarl_api.schedules.manifest import schedule_faults
from lorarl_api.sweeps.manifest import sweep_faults
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
