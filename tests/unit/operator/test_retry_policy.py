"""A job's own rules say what follows when an attempt ends: `spec.retryPolicy`."""

from __future__ import annotations

import pytest

from lorarl_api.v1alpha1.retries import RETRY_REASONS
from lorarl_operator.decide.decision import DeletePod
from lorarl_operator.decide.reasons import Ended
from lorarl_operator.decide.retry_policy import default_action
from unit.operator.decisions import RUNNING, conditions, decided, running_status
from unit.operator.observed_world import ago, ended, raw_job, raw_pod, raw_ray_job

FAILED = {"jobDeploymentStatus": "Failed", "jobStatus": "FAILED", "endTime": ago(30)}


def after(reason, *rules, pods=(), **spec):
    failure = {"failure": {"reason": reason, "message": "as reported", "attempt": 1}} if reason else {}
    job = raw_job({"retryPolicy": [*rules], **spec}, running_status(**failure))
    return decided(job, raw_ray_job(**FAILED), pods=[*pods])


def told(decision):
    status = decision.status
    return status["phase"], status["attempts"], status["preemptions"]


@pytest.mark.parametrize(
    ("reason", "action", "expected"),
    [
        ("StorageFailed", None, ("Restarting", 1, 0)),
        ("StorageFailed", "Fail", ("Failed", 1, 0)),
        ("StorageFailed", "Retry", ("Restarting", 1, 0)),
        ("StorageFailed", "Ignore", ("Restarting", 0, 1)),
        ("InvalidInput", None, ("Failed", 1, 0)),
        ("InvalidInput", "Retry", ("Restarting", 1, 0)),
        ("PolicyDrift", "Fail", ("Failed", 1, 0)),
    ],
)
def test_a_reason_counts_as_its_rule_says(reason, action, expected):
    rules = [{"reason": reason, "action": action}] if action else []
    assert told(after(reason, *rules)) == expected
    other = {"reason": "WorkerFailed", "action": "Fail" if action != "Fail" else "Ignore"}
    assert told(after(reason, other, *rules)) == expected, "a rule for another reason"


def test_the_first_rule_that_fits_decides_and_is_named():
    other, first = {"reason": "Failed", "action": "Ignore"}, {"reason": "StorageFailed", "action": "Fail"}
    decision = after("StorageFailed", other, first, {"reason": "StorageFailed", "action": "Ignore"})
    assert conditions(decision)["Failed"]["reason"] == "StorageFailed"
    assert "retryPolicy[1] says Fail. as reported" in conditions(decision)["Failed"]["message"]


def test_an_exit_code_counts_as_its_rule_says():
    head = raw_pod("head", containerStatuses=ended("head", 42, age=40))
    rule = {"exitCode": 42, "action": "Fail"}
    assert told(after("", rule, pods=[head])) == ("Failed", 1, 0)
    assert told(after("", {"exitCode": 43, "action": "Fail"}, pods=[head])) == ("Restarting", 1, 0)


def test_what_is_ignored_has_a_limit_all_the_same():
    rule = {"reason": "WorkerFailed", "action": "Ignore"}
    decision = after("WorkerFailed", rule, maxPreemptionsWithoutProgress=1)
    assert conditions(decision)["Failed"]["reason"] == "NoProgress"


def test_a_preemption_may_count_as_a_failure_and_takes_the_rayjob_with_it():
    """Otherwise the head alone would be replaced, in the RayJob that keeps its place in the queue."""
    evicted = raw_pod("head", phase="Failed", reason="Evicted", message="node-1")
    ray_job = raw_ray_job(**RUNNING)
    ray_job["spec"]["backoffLimit"] = 8
    deleted = raw_pod("head", deletionTimestamp=ago(-30), deletionGracePeriodSeconds=120)
    for pods, rule, kind in (
        ([deleted], [], DeletePod),
        ([deleted], [{"reason": "PodDeleted", "action": "Retry"}], None),
        ([evicted], [{"reason": "PodDeleted", "action": "Retry"}], DeletePod),
    ):
        decision = decided(raw_job({"retryPolicy": rule}, running_status()), ray_job, pods=pods)
        if kind is None:
            assert told(decision) == ("Restarting", 1, 0)
            assert [action.name for action in decision.actions] == ["demo-1"]
        else:
            assert decision.status["preemptions"] == 1


def test_a_suspension_counts_an_end_by_the_rules_too():
    rule = {"reason": "StorageFailed", "action": "Ignore"}
    decision = after("StorageFailed", rule, suspend=True)
    assert told(decision) == ("Suspending", 0, 1)


def test_the_contract_knows_each_end_that_a_rule_may_change():
    """Limits and ends of the job by its administrator have no rule, and a fenced job would fence off its successor."""
    limits = {"Fenced", "Preempted", "NoProgress", "MultiKueue", "DeadlineExceeded", "StartDeadlineExceeded"}
    assert {str(reason) for reason in Ended} - RETRY_REASONS == limits | {
        "QueueStopped",
        "QueueTimeLimit",
        "QueueGaveUp",
    }
    assert {str(reason) for reason in Ended} >= RETRY_REASONS
    assert {default_action(reason) for reason in Ended} == {"", "Fail", "Retry", "Ignore"}
