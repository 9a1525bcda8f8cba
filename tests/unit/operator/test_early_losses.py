"""Pods that an attempt loses before it runs: they are explained, and KubeRay does not replace them forever."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lorarl_operator.decide import parse
from lorarl_operator.decide.decision import Delete
from lorarl_operator.decide.early_losses import losses, too_many
from unit.operator.decisions import RUNNING, conditions, decided, running_status, status_of
from unit.operator.observed_world import START, ago, condition, ended, init_failed, raw_job, raw_pod, raw_ray_job

UP = {"jobDeploymentStatus": "Initializing"}
REFUSALS = {
    "TopologyAffinityError": "Resources cannot be allocated with Topology locality",
    "UnexpectedAdmissionError": "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices",
    "OutOfnvidia.com/gpu": "Node didn't have enough resource: nvidia.com/gpu, requested: 8, used: 8, capacity: 8",
    "PodOSNotSupported": "Pod was rejected: Failed to admit pod as the OS field doesn't match node OS",
}


def refused(reason="TopologyAffinityError", **parts):
    return raw_pod("worker", phase="Failed", reason=reason, message=REFUSALS[reason], **parts)


def evicted(**parts):
    return raw_pod("head", phase="Failed", reason="Evicted", message="The node was low on resource: memory.", **parts)


def exited(code=1, message="The current node timed out during startup.", **parts):
    return raw_pod("worker", phase="Failed", containerStatuses=ended("worker", code, message=message), **parts)


def started(*departed, pods=(), spec=None, ray_job=None, now=START, **status):
    """The decision about a starting attempt, of whose pods KubeRay has deleted `departed`."""
    gone = tuple(parse.pod({**pod, "metadata": pod["metadata"] | {"uid": f"{n}"}}) for n, pod in enumerate(departed))
    job = raw_job(spec, status_of("Starting", startTime=ago(9)) | status)
    return decided(job, ray_job or raw_ray_job(**UP), pods=list(pods), departed=gone, now=now)


def test_the_newest_of_too_many_losses_is_the_end():
    pods = [parse.pod(refused(name=f"worker-{age}", age=age)) for age in (30, 20, 10)]
    assert too_many(losses(pods[:2])) is None
    for order in (pods, pods[::-1]):
        end = too_many(losses(order))
        assert end is not None and "worker-10" in end.message


class TestOneLoss:
    @pytest.mark.parametrize("reason", REFUSALS)
    @pytest.mark.parametrize("replaced", [False, True])
    def test_a_node_that_refuses_a_pod_is_named(self, reason, replaced):
        pod = refused(reason, age=2)
        decision = started(pod) if replaced else started(pods=[pod])
        waits = conditions(decision)["Running"]
        assert (decision.status["phase"], waits["reason"]) == ("Pending", "PodRefused")
        for words in ("node-1", "demo-1-worker", reason, REFUSALS[reason]):
            assert words in waits["message"]
        assert [(event.type, event.reason) for event in decision.events] == [("Warning", "PodRefused")]

    def test_an_init_container_that_fails_shows_the_end_of_its_log(self):
        decision = started(init_failed("worker", 7, "hf: 404 Not Found"))
        waits = conditions(decision)["Running"]
        assert (decision.status["phase"], waits["reason"]) == ("Pending", "InitFailed")
        assert "Init container fetch of the worker pod demo-1-worker on node node-1" in waits["message"]
        assert "exit code 7. Its last output: hf: 404 Not Found." in waits["message"]

    def test_a_head_that_is_evicted_before_it_runs_is_explained(self):
        decision = started(evicted(age=2))
        assert conditions(decision)["Running"]["reason"] == "Evicted"
        assert decision.status["preemptions"] == 0

    @pytest.mark.parametrize("replaced", [False, True])
    def test_a_worker_whose_ray_exits_at_its_start_is_replaced(self, replaced):
        """Ray gives itself 30 s to start. On a busy machine that cost an attempt, and the job's quota."""
        pod = exited(age=2)
        decision = started(pod) if replaced else started(pods=[pod])
        assert (decision.actions, decision.status["attempts"]) == ((), 0)
        waits = conditions(decision)["Running"]
        assert waits["reason"] == "WorkerExited"
        assert "timed out during startup. KubeRay replaces the pod." in waits["message"]

    def test_it_costs_nothing_when_its_replacement_is_up(self):
        """KubeRay calls the RayJob Running a moment before the job is."""
        decision = started(exited(age=20), pods=[raw_pod("worker", name="new")], ray_job=raw_ray_job(**RUNNING))
        assert (decision.status["phase"], decision.status["attempts"]) == ("Running", 0)

    def test_one_that_needs_more_memory_is_not(self):
        pod = raw_pod("worker", containerStatuses=ended("worker", 137, "OOMKilled"))
        assert started(pods=[pod]).status["attempts"] == 1

    def test_it_explains_nothing_a_minute_later(self):
        decision = started(refused(age=2), now=START + timedelta(seconds=59))
        assert conditions(decision)["Running"]["reason"] == "Starting"

    @pytest.mark.parametrize(
        "pod",
        [
            init_failed("worker", 143, deletionTimestamp=ago(-119), deletionGracePeriodSeconds=120, age=0),
            init_failed("worker", 0),
            # A sidecar among the init containers starts again by itself.
            raw_pod(
                "worker",
                phase="Pending",
                initContainerStatuses=[{"name": "proxy", "lastState": {"terminated": {"exitCode": 1}}}],
            ),
        ],
    )
    def test_an_init_container_that_did_not_fail(self, pod):
        assert conditions(started(pods=[pod]))["Running"]["reason"] == "Starting"


class TestManyLosses:
    def test_refusals_end_the_attempt_as_a_machines_fault(self):
        decision = started(*[refused(age=age) for age in (3, 2, 1)], spec={"backoffLimit": 0})
        assert (decision.status["phase"], decision.status["rayJobName"]) == ("Restarting", "demo-2")
        assert (decision.status["attempts"], decision.status["preemptions"]) == (0, 1)
        assert conditions(decision)["Disrupted"]["reason"] == "PodRefused"
        assert "node-1" in conditions(decision)["Running"]["message"]
        assert decision.actions == (Delete("RayJob", "demo-1", "ray-1"),)

    def test_refusals_follow_each_other_with_longer_and_longer_delays(self):
        last = condition("Running", False, "PreemptedAgain", age=5)
        refusals = [refused(age=age) for age in (3, 2, 1)]
        decision = started(*refusals, preemptions=9, preemptionsWithoutProgress=4, conditions=[last])
        assert conditions(decision)["Running"]["reason"] == "PreemptedAgain"
        assert decision.recheck_seconds == 16

    def test_failing_init_containers_count_as_a_failure(self):
        pods = [init_failed("worker", 1, "no such model", age=age) for age in (900, 600, 300)]
        decision = started(*pods)
        assert (decision.status["attempts"], decision.status["preemptions"]) == (1, 0)
        assert conditions(decision)["Running"]["reason"] == "BackingOff"
        assert "InitFailed" in conditions(decision)["Running"]["message"]
        last = started(*pods, spec={"backoffLimit": 0})
        assert conditions(last)["Failed"]["reason"] == "InitFailed"
        assert "no such model" in conditions(last)["Failed"]["message"]

    def test_workers_that_exit_at_their_start_count_as_a_failure(self):
        decision = started(*[exited(age=age) for age in (300, 200, 100)])
        assert (decision.status["attempts"], decision.status["preemptions"]) == (1, 0)
        assert "WorkerExited" in conditions(decision)["Running"]["message"]

    def test_two_of_a_kind_may_be_bad_luck(self):
        decision = started(refused(age=3), init_failed("worker"), evicted(age=2), init_failed("worker"))
        assert decision.actions == ()
        assert decision.status["rayJobName"] == "demo-1"

    def test_an_evicted_head_is_not_replaced_forever(self):
        decision = started(evicted(age=3), evicted(age=2), evicted(age=1))
        assert decision.status["preemptions"] == 1
        assert conditions(decision)["Disrupted"]["reason"] == "Evicted"

    def test_they_cost_a_running_attempt_nothing(self):
        departed = [refused(age=age) for age in (300, 200, 100)]
        gone = tuple(
            parse.pod(pod | {"metadata": pod["metadata"] | {"deletionTimestamp": ago(90)}}) for pod in departed
        )
        assert decided(raw_job(status=running_status()), raw_ray_job(**RUNNING), departed=gone).actions == ()

    def test_those_of_an_older_raycluster_do_not_count(self):
        departed = [refused(age=age) for age in (3, 2, 1)]
        ray_job = raw_ray_job(**UP)
        ray_job["status"]["rayClusterName"] = "cluster-after-the-queue"
        assert started(*departed, ray_job=ray_job).actions == ()
