"""The conditions by which Flux, helm and other users of kstatus judge a job, and Argo CD's script, in every phase."""

from __future__ import annotations

import pytest

from lorarl_operator.decide import parse
from lorarl_operator.decide.status import Draft
from support.cluster.tools import tools_or_skip
from support.gitops import judged
from unit.operator.decisions import conditions, decided
from unit.operator.observed_world import START, raw_job

CASES = [
    ("Pending", "Queued", False, "InProgress", "Progressing"),
    ("Pending", "Invalid", False, "Failed", "Degraded"),
    ("Starting", "Starting", False, "InProgress", "Progressing"),
    ("Running", "Running", True, "Current", "Progressing"),
    ("Running", "Recovering", False, "InProgress", "Progressing"),
    ("Restarting", "BackingOff", False, "InProgress", "Progressing"),
    ("Suspending", "Suspending", False, "InProgress", "Progressing"),
    ("Suspended", "Suspended", False, "Current", "Suspended"),
    ("Succeeded", "Succeeded", False, "Current", "Healthy"),
    ("Failed", "OutOfMemory", False, "Failed", "Degraded"),
]


def written(phase, reason, running):
    """A job as it is stored after the operator has seen it in this phase."""
    raw = raw_job()
    draft = Draft(parse.job(raw), {}, START)
    draft.phase = phase
    draft.condition("Running", running, reason, "Why it is so.")
    return {"apiVersion": "lorarl.io/v1alpha1", "kind": "LoRARLJob", **raw, "status": draft.written()}


def test_each_phase_as_kstatus_and_argo_cd_see_it():
    with tools_or_skip():
        found = judged(written(*case[:3]) for case in CASES)
    assert found == [(kstatus, argo, "Why it is so.") for *_, kstatus, argo in CASES]


@pytest.mark.parametrize("after", ["Running", "Succeeded"])
def test_a_condition_that_no_longer_holds_is_removed(after):
    raw = written("Failed", "OutOfMemory", False)
    draft = Draft(parse.job(raw), raw["status"], START)
    draft.phase = after
    draft.condition("Running", after == "Running", after, "It works again.")
    assert {each["type"] for each in draft.written()["conditions"]} == {"Running"}


def test_a_job_whose_spec_must_be_corrected_is_stalled():
    decision = decided(raw_job({"adapter": {"targetModules": ["all-linear"], "unknown": 1}}))
    assert conditions(decision)["Stalled"]["reason"] == "Invalid"
    assert "Reconciling" not in conditions(decision)
