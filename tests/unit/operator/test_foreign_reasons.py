"""Reasons that other components give: whatever they are, the API server takes the status that repeats them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lorarl_api.v1alpha1.status import LoRARLJobStatus
from lorarl_operator.decide.decide import decide
from lorarl_operator.decide.reasons import foreign
from unit.operator.decisions import QUEUE, RUNNING, conditions, running_status, status_of
from unit.operator.observed_world import SETTINGS, START, ago, condition, observed, raw_job, raw_pod, raw_ray_job

TRAINS = {"workers": {"attempt": 1, "pods": ["demo-1-worker"]}, "step": 7}
TEXTS = st.text(max_size=12) | st.sampled_from(["node-maintenance", "EvictionByEvictionAPI", "x" * 3000, "ü" * 5000])
KINDS = st.sampled_from(["DisruptionTarget", "Ready", "PodScheduled", "ContainersReady"])
CONDITIONS = st.lists(st.builds(condition, KINDS, st.booleans(), TEXTS, TEXTS), max_size=3)


@pytest.mark.parametrize(
    ("given_one", "word"),
    [
        ("EvictionByEvictionAPI", "EvictionByEvictionAPI"),
        ("node-maintenance", "NodeMaintenance"),
        ("OutOfnvidia.com/gpu", "OutOfnvidiaComGpu"),
        ("2 nodes", "Nodes"),
        ("äöü", "Unknown"),
        ("", "Unknown"),
    ],
)
def test_a_reason_becomes_one_word(given_one: str, word: str) -> None:
    assert foreign(given_one) == word


def test_a_pod_that_others_take_away_for_a_reason_of_many_words_is_a_loss() -> None:
    target = condition("DisruptionTarget", True, "node-maintenance (zone b)", "The node is being repaired.")
    pods = [raw_pod("head", conditions=[target], deletionTimestamp=ago(-20), deletionGracePeriodSeconds=60)]
    seen = observed(raw_job(status=running_status(**TRAINS)), raw_ray_job(**RUNNING), pods=pods)
    decision = decide(seen, START, SETTINGS)
    assert decision.status is not None
    LoRARLJobStatus.model_validate(decision.status)
    assert conditions(decision)["Disrupted"]["reason"] == "NodeMaintenanceZoneB"
    assert decision.status["preemptions"] == 1


@st.composite
def some_pod(draw: st.DrawFn) -> dict[str, Any]:
    role = draw(st.sampled_from(["head", "worker", "engine"]))
    parts: dict[str, Any] = {"phase": draw(st.sampled_from(["Pending", "Running", "Failed", "Succeeded"]))}
    parts |= {"conditions": draw(CONDITIONS), "reason": draw(TEXTS), "message": draw(TEXTS)}
    if draw(st.booleans()):
        end = {"exitCode": draw(st.integers(0, 255)), "reason": draw(TEXTS), "message": draw(TEXTS)}
        parts["containerStatuses"] = [{"name": f"ray-{role}", "state": {"terminated": end | {"finishedAt": ago(5)}}}]
    if draw(st.booleans()):
        parts |= {"deletionTimestamp": ago(draw(st.integers(-60, 60))), "deletionGracePeriodSeconds": 30}
    return raw_pod(role, name=draw(st.sampled_from(["demo-1-worker", "b"])), **parts)


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    pods=st.lists(some_pod(), max_size=3),
    state=st.sampled_from(["Running", "Failed", "Complete", "Initializing", "ValidationFailed", "Suspended", ""]),
    job_status=st.sampled_from(["RUNNING", "FAILED", "SUCCEEDED", "STOPPED", ""]),
    said=TEXTS,
    status=st.sampled_from([running_status(**TRAINS), status_of("Starting"), status_of("Pending")]),
    labels=st.sampled_from([{}, QUEUE]),
)
def test_the_api_server_takes_every_status(
    pods: list[dict[str, Any]], state: str, job_status: str, said: str, status: dict[str, Any], labels: dict[str, str]
) -> None:
    ray_job = raw_ray_job(jobDeploymentStatus=state, jobStatus=job_status, reason=said, message=said)
    decision = decide(observed(raw_job(status=status, labels=labels), ray_job, pods=pods), START, SETTINGS)
    if decision.status is not None:
        LoRARLJobStatus.model_validate(decision.status)
