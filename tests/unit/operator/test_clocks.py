"""Times: clocks of machines differ, transitions are those of conditions, and a report belongs to one start."""

from __future__ import annotations

from datetime import timedelta

import pytest

from unit.operator.decisions import QUEUE, RUNNING, conditions, decided, running_status, status_of
from unit.operator.observed_world import START, ago, condition, ended, raw_job, raw_pod, raw_ray_job


@pytest.mark.parametrize("behind", [0, 0.5, 2, 30])
def test_an_operator_whose_clock_is_behind_waits_for_news_too(behind):
    """Before, a time in its future skipped the wait: 2 s behind, the job was SubmissionFailed."""
    ray_job = raw_ray_job(jobDeploymentStatus="Failed", jobStatus="FAILED", endTime=ago(0))
    decision = decided(raw_job(status=running_status()), ray_job, now=START - timedelta(seconds=behind))
    assert decision.status is None
    assert decision.recheck_seconds == 3


def test_a_time_far_in_the_future_is_not_waited_for():
    ray_job = raw_ray_job(jobDeploymentStatus="Failed", jobStatus="FAILED", endTime=ago(-3600))
    assert decided(raw_job(status=running_status()), ray_job).status["phase"] == "Restarting"


class TestReport:
    """Kueue preempts an attempt and admits it again: the same number, another start."""

    def killed(self, reported, began, reason="Interrupted"):
        failure = {"reason": reason, "message": "SIGTERM", "attempt": 1, **({"time": reported} if reported else {})}
        ray_job = raw_ray_job(**RUNNING, startTime=began)
        ray_job["metadata"]["labels"] |= QUEUE
        head = raw_pod("head", containerStatuses=ended("head", 137, "OOMKilled", age=10))
        leaves = raw_pod("worker", deletionTimestamp=ago(-90), deletionGracePeriodSeconds=120)
        return decided(raw_job(status=running_status(failure=failure)), ray_job, pods=[head, leaves]).status

    def test_a_head_that_is_killed_is_not_taken_for_the_interruption_before(self):
        status = self.killed(reported=ago(300), began=ago(60))
        assert (status["attempts"], status["preemptions"]) == (1, 0)
        assert "more memory than its limit" in conditions_of(status)["Running"]["message"]

    def test_an_interruption_of_this_start_counts(self):
        status = self.killed(reported=ago(20), began=ago(60))
        assert (status["attempts"], status["preemptions"]) == (0, 1)

    def test_a_report_without_a_time_counts_as_before(self):
        """Of an older trainer's image."""
        assert self.killed(reported=None, began=ago(60))["preemptions"] == 1

    def test_a_start_that_was_fenced_off_does_not_end_the_one_after_it(self):
        assert self.killed(reported=ago(300), began=ago(60), reason="Fenced")["phase"] == "Restarting"


def conditions_of(status):
    return {each["type"]: each for each in status["conditions"]}


class TestTransitions:
    def test_a_condition_that_stays_false_keeps_its_time(self):
        """metav1.Condition: lastTransitionTime is when the status last changed."""
        status = status_of("Starting", conditions=[condition("Running", False, "Starting", "x", age=300)])
        failure = {"reason": "BadReward", "message": "x", "attempt": 1}
        ray_job = raw_ray_job(jobDeploymentStatus="Failed", jobStatus="FAILED", endTime=ago(30))
        decision = decided(raw_job(status=status | {"failure": failure}), ray_job)
        assert conditions(decision)["Running"]["lastTransitionTime"] == ago(300)
        assert decision.status["attemptEndTime"] == ago(0)
        assert decision.recheck_seconds == 10

    def test_the_delay_counts_from_the_attempts_end(self):
        pause = condition("Running", False, "BackingOff", age=300)
        status = status_of("Restarting", "demo-2", conditions=[pause], attemptEndTime=ago(4)) | {"attempts": 1}
        assert decided(raw_job(status=status)).recheck_seconds == 6

    @pytest.mark.parametrize(("ahead", "left"), [(5, 15), (10, 20)])
    def test_an_end_that_our_clock_has_not_reached_keeps_the_pause(self, ahead, left):
        """The operator before wrote it, on a machine whose clock is seconds ahead."""
        pause = condition("Running", False, "BackingOff", age=300)
        status = status_of("Restarting", "demo-2", conditions=[pause], attemptEndTime=ago(-ahead)) | {"attempts": 1}
        assert decided(raw_job(status=status)).recheck_seconds == left

    def test_two_disruptions_in_a_row_are_one_transition(self):
        disrupted = condition("Disrupted", True, "Evicted", "node-1", age=100)
        status = running_status()
        status["conditions"].append(disrupted)
        pods = [raw_pod("worker", phase="Failed", reason="Evicted", message="again")]
        decision = decided(raw_job(status=status), raw_ray_job(**RUNNING), pods=pods)
        found = conditions(decision)["Disrupted"]
        assert (found["lastTransitionTime"], decision.status["preemptions"]) == (ago(100), 1)
        assert "again" in found["message"]


def test_the_gpus_of_an_attempt_are_in_the_status():
    decision = decided(raw_job({"cluster": {"nodes": 2, "gpusPerNode": 8}}), raw_ray_job(age=1))
    assert decision.status["gpus"] == 16
