"""Properties of loading: any text or document gives a job or faults, and a job survives a round trip."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lorarl_api.load import Fault, ManifestError, faults, load_job
from unit.contract.cases import CASES
from unit.contract.manifests import changed, manifest

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
