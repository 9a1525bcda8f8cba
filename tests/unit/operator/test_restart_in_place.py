"""An attempt that is lost starts again in its RayJob where a queue would take back its place, and is counted once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lorarl_operator.control.cache import Cache, with_last_end
from lorarl_operator.decide import parse
from lorarl_operator.decide.decide import decide
from lorarl_operator.decide.decision import Delete, DeletePod
from lorarl_operator.decide.outcome import HEAD_GONE
from lorarl_operator.kube.resources import LORARLJOBS, RAYJOBS
from unit.operator.decisions import RUNNING, conditions, running_status, status_of
from unit.operator.observed_world import (
    SETTINGS,
    START,
    ago,
    condition,
    ended,
    observed,
    raw_job,
    raw_pod,
    raw_ray_job,
)
from unit.operator.world import World

QUEUED = {"kueue.x-k8s.io/queue-name": "research"}
HEAD = raw_pod("head", conditions=[condition("Ready", True)])
RETRYING = {"jobDeploymentStatus": "Retrying", "jobStatus": "RUNNING", "reason": "AppFailed", "failed": 1}
STARTS = {"jobDeploymentStatus": "Initializing", "jobStatus": "", "rayClusterName": "cluster-new", "failed": 1}


def ray_job(*, restarts=8, ended_ago=5, **status):
    raw = raw_ray_job(**{"startTime": ago(300), **status})
    raw["spec"]["backoffLimit"] = restarts
    raw["metadata"]["labels"] |= QUEUED
    raw["metadata"]["managedFields"] = [{"subresource": "status", "manager": "ray-operator", "time": ago(ended_ago)}]
    return raw


def decided(status, raw, *pods, spec=None, departed=(), before=None):
    """Decide about a RayJob; `before` is an older version of it that was seen."""
    known = parse.ray_job(before) if before else None
    current = with_last_end(parse.ray_job(raw), with_last_end(known, None) if known else None)
    seen = observed(raw_job(spec, status), pods=list(pods), departed=tuple(parse.pod(pod) for pod in departed))
    return decide(replace(seen, ray_jobs=(current,)), START, SETTINGS)


def restarting(count=1, **more):
    told = condition("Running", False, "Restarting", "m", age=2)
    return status_of("Restarting", conditions=[told], attemptEndTime=ago(2), restartsInPlace=count, **more) | {
        "preemptions": 1,
        "restarts": 1,
    }


def failure(reason, age):
    return {"failure": {"reason": reason, "message": "told by the trainer", "attempt": 1, "time": ago(age)}}


class TestKubeRaySaysRetrying:
    def test_a_lost_head_is_counted_and_nothing_is_deleted(self):
        decision = decided(running_status(), ray_job(**RETRYING, message=HEAD_GONE))
        status = decision.status
        assert (status["phase"], status["rayJobName"], status["restartsInPlace"]) == ("Restarting", "demo-1", 1)
        assert (status["attempts"], status["preemptions"], status["restarts"]) == (0, 1, 1)
        assert decision.actions == ()
        (event,) = decision.events
        assert event.reason == "Restarting"
        assert "ended with HeadLost" in event.message
        assert "in the same RayJob, which keeps its place in the queue" in event.message
        assert conditions(decision)["Disrupted"]["reason"] == "HeadLost"

    def test_the_cause_may_still_come(self):
        decision = decided(running_status(), ray_job(**RETRYING, message=HEAD_GONE, ended_ago=1))
        assert (decision.status, decision.actions) == (None, ())
        assert 0 < decision.recheck_seconds <= SETTINGS.settle_seconds

    def test_the_trainers_own_failure_ends_the_rayjob(self):
        decision = decided(running_status(**failure("RewardFailed", 6)), ray_job(**RETRYING))
        assert (decision.status["phase"], decision.status["rayJobName"]) == ("Restarting", "demo-2")
        assert (decision.status["attempts"], decision.status["preemptions"]) == (1, 0)
        assert "restartsInPlace" not in decision.status
        assert [type(action) for action in decision.actions] == [Delete]
        assert conditions(decision)["Running"]["reason"] == "BackingOff"

    def test_a_failure_without_another_attempt_ends_the_job(self):
        status = running_status(**failure("InvalidInput", 6))
        decision = decided(status, ray_job(**RETRYING))
        assert decision.status["phase"] == "Failed"
        assert [type(action) for action in decision.actions] == [Delete], "KubeRay would start it again"

    def test_a_head_without_memory_is_the_jobs_own_fault(self):
        head = raw_pod("head", containerStatuses=ended("head", 137, "OOMKilled", age=6), phase="Failed")
        decision = decided(running_status(), ray_job(**RETRYING), departed=[head])
        assert decision.status["attempts"] == 1
        assert conditions(decision)["Running"]["message"].startswith("Attempt 1 ended with OutOfMemory")

    def test_a_node_that_is_to_be_avoided_needs_other_pods(self):
        bad = [{"name": "node-1", "attempts": 1, "reason": "PodRefused", "lastTime": ago(3600)}]
        gone = condition("DisruptionTarget", True, "DeletionByTaintManager", "the node does not respond")
        head = raw_pod("head", conditions=[gone])
        decision = decided(running_status(faultyNodes=bad), ray_job(**RETRYING), departed=[head])
        assert (decision.status["rayJobName"], decision.status["faultyNodes"][0]["attempts"]) == ("demo-2", 2)
        assert [type(action) for action in decision.actions] == [Delete]

    def test_a_cluster_that_takes_pods_again_and_again_gets_its_pause(self):
        status = running_status() | {"preemptions": 6, "preemptionsWithoutProgress": 4}
        status["conditions"][0]["lastTransitionTime"] = ago(20)
        decision = decided(status, ray_job(**RETRYING, message=HEAD_GONE))
        assert (decision.status["rayJobName"], conditions(decision)["Running"]["reason"]) == (
            "demo-2",
            "PreemptedAgain",
        )

    def test_a_job_that_gets_on_keeps_its_place_however_often_it_is_hit(self):
        status = running_status(step=9, furthestStep=8) | {"preemptions": 6, "preemptionsWithoutProgress": 4}
        status["conditions"][0]["lastTransitionTime"] = ago(20)
        decision = decided(status, ray_job(**RETRYING, message=HEAD_GONE))
        assert (decision.status["rayJobName"], decision.status["preemptions"]) == ("demo-1", 7)
        assert (conditions(decision)["Running"]["reason"], decision.actions) == ("Restarting", ())

    def test_the_limit_of_fruitless_losses_holds(self):
        status = running_status(step=3, furthestStep=3, preemptionsWithoutProgress=1)
        decision = decided(status, ray_job(**RETRYING, message=HEAD_GONE), spec={"maxPreemptionsWithoutProgress": 2})
        assert conditions(decision)["Failed"]["reason"] == "NoProgress"
        assert [type(action) for action in decision.actions] == [Delete]

    def test_a_failure_counts_also_if_the_job_is_suspended_before(self):
        status = running_status(**failure("RewardFailed", 6))
        decision = decided(status, ray_job(**RETRYING), spec={"suspend": True})
        assert (decision.status["phase"], decision.status["attempts"]) == ("Suspending", 1)

    def test_it_waits_for_the_new_cluster(self):
        decision = decided(restarting(), ray_job(**RETRYING, message=HEAD_GONE))
        assert (decision.status, decision.actions, decision.events) == (None, (), ())


class TestTheNextCluster:
    def test_a_counted_loss_is_not_counted_again(self):
        before = ray_job(**RETRYING, message=HEAD_GONE)
        decision = decided(restarting(), ray_job(**STARTS), before=before)
        assert (decision.status["phase"], decision.status["preemptions"]) == ("Starting", 1)
        assert (decision.status["restartsInPlace"], decision.actions) == (1, ())

    def test_it_may_exist_before_the_loss_is_counted(self):
        """KubeRay forgets within milliseconds why it retried, but the operator has seen it."""
        failed = failure("RewardFailed", 6)
        gone = raw_pod("head", deletionTimestamp=ago(-60), deletionGracePeriodSeconds=65)
        before = ray_job(**RETRYING, message=HEAD_GONE)
        now = ray_job(**STARTS | {"startTime": ago(4)})
        decision = decided(running_status(), now, gone, before=before)
        assert (decision.status["phase"], decision.status["restartsInPlace"]) == ("Restarting", 1)
        decision = decided(running_status(**failed), now, gone, before=before)
        assert (decision.status["rayJobName"], decision.status["attempts"]) == ("demo-2", 1)

    @pytest.mark.parametrize(
        ("status", "counted"),
        [({}, (0, 1)), (failure("Interrupted", 9), (0, 1)), (failure("RewardFailed", 9), (1, 0))],
        ids=["nothing", "interrupted", "failed"],
    )
    def test_nobody_saw_the_loss(self, status, counted):
        decision = decided(running_status(**status), ray_job(**STARTS | {"startTime": ago(4)}))
        assert (decision.status["attempts"], decision.status["preemptions"]) == counted

    def test_of_several_unseen_ends_a_failure_counts(self):
        """No operator worked when the training failed, started again, and lost its head."""
        twice = {"failed": 2, "message": HEAD_GONE, "startTime": ago(30)}
        decision = decided(running_status(**failure("RewardFailed", 60)), ray_job(**RETRYING | twice))
        assert (decision.status["attempts"], decision.status["preemptions"]) == (1, 0)

    def test_an_old_report_says_nothing_about_a_later_loss(self):
        status = running_status(restartsInPlace=1, attemptEndTime=ago(100), **failure("RewardFailed", 200))
        decision = decided(status, ray_job(**STARTS | {"failed": 2, "startTime": ago(4)}))
        assert (decision.status["attempts"], decision.status["restartsInPlace"]) == (0, 2)

    def test_an_older_operator_followed_the_start_and_removed_the_number(self):
        """During a rollback. What it has seen through until the training ran is not counted again."""
        started = ray_job(**RUNNING | {"failed": 1, "startTime": ago(55)})
        told = running_status(attemptEndTime=ago(58)) | {"preemptions": 1}
        decision = decided(told, started, HEAD)
        assert (decision.status["phase"], decision.status["preemptions"]) == ("Running", 1)
        assert (decision.status["restartsInPlace"], decision.actions) == (1, ())
        # It has recorded no end, or one of the RayJob before: then none was counted.
        for status in (running_status(), running_status(attemptEndTime=ago(70))):
            assert decided(status, started, HEAD).status["preemptions"] == 1

    def test_the_workers_of_the_cluster_before_mean_nothing(self):
        """The trainer reported them before this start, and they are gone."""
        reported = {"manager": "lorarl-trainer", "subresource": "status", "time": ago(200)}
        status = running_status(restartsInPlace=1, workers={"attempt": 1, "pods": ["old"]}, step=3)
        raw = ray_job(**RUNNING, failed=1, startTime=ago(60))
        crashed = raw_pod("worker", name="new", containerStatuses=ended("worker", 1, age=30), phase="Failed")
        seen = observed(raw_job(None, status, managedFields=[reported]), raw, pods=[HEAD, crashed])
        assert decide(seen, START, SETTINGS).status["attempts"] == 1

    def test_a_new_rayjob_begins_at_zero(self):
        status = status_of("Restarting", "demo-1", restartsInPlace=2)
        raw = ray_job(**RUNNING)
        raw["metadata"]["name"] = "demo-2"
        seen = observed(raw_job(None, status), raw, pods=[])
        decision = decide(seen, START, SETTINGS)
        assert decision.status["rayJobName"] == "demo-2"
        assert "restartsInPlace" not in decision.status
        assert decision.actions == ()


class TestTheOperatorEndsIt:
    """A worker is lost, and the attempt cannot replace it. KubeRay takes no notice of that."""

    LOST = raw_pod("worker", phase="Failed", reason="Evicted", message="the node was low on memory")

    def test_the_head_is_deleted(self):
        decision = decided(running_status(), ray_job(**RUNNING), HEAD, self.LOST)
        assert (decision.status["phase"], decision.status["restartsInPlace"]) == ("Restarting", 1)
        assert decision.actions == (DeletePod("demo-1-head", "pod-head-1", at_once=False, ray_job="demo-1"),)

    def test_it_is_deleted_also_after_a_crash_and_only_then_waited_for(self):
        decision = decided(restarting(), ray_job(**RUNNING), HEAD, self.LOST)
        assert [type(action) for action in decision.actions] == [DeletePod]
        going = raw_pod("head", deletionTimestamp=ago(-10), deletionGracePeriodSeconds=12)
        decision = decided(restarting(), ray_job(**RUNNING), going, self.LOST)
        assert (decision.status, decision.actions) == (None, ())
        assert decision.recheck_seconds

    def test_a_head_on_a_lost_node_goes_without_that_nodes_word(self):
        stays = raw_pod("head", deletionTimestamp=ago(600), deletionGracePeriodSeconds=60)
        (action,) = decided(restarting(), ray_job(**RUNNING), stays).actions
        assert action.at_once
        kept = raw_pod("head", deletionTimestamp=ago(660), deletionGracePeriodSeconds=0, finalizers=["others/kept"])
        decision = decided(restarting(), ray_job(**RUNNING), kept)
        assert decision.actions == () and decision.recheck_seconds, "a removal at each look would remove nothing"

    def test_kuberays_failure_that_follows_is_the_same_one(self):
        decision = decided(restarting(), ray_job(**RETRYING, message=HEAD_GONE))
        assert (decision.status, decision.actions) == (None, ())

    def test_a_queue_may_stop_the_rayjob_before_kuberay_notices(self):
        """Then it has not failed. The next cluster keeps its head."""
        held = ray_job(jobDeploymentStatus="Suspended")
        held["spec"]["suspend"] = True
        decision = decided(restarting(), held)
        assert decision.status["phase"] == "Pending"
        assert "restartsInPlace" not in decision.status

    @pytest.mark.parametrize(("restarts", "failed"), [(0, 0), (1, 1), (8, 8)])
    def test_without_a_restart_left_the_next_rayjob_follows(self, restarts, failed):
        raw = ray_job(restarts=restarts, **RUNNING, failed=failed)
        decision = decided(running_status(restartsInPlace=failed), raw, HEAD, self.LOST)
        assert decision.status["rayJobName"] == "demo-2"
        assert [type(action) for action in decision.actions] == [Delete]


class TestANodeIsLostWithHeadAndWorker:
    """Kubernetes asks for the deletion of both pods, in any order, and nothing says that they have ended."""

    TAINTED = condition("DisruptionTarget", True, "DeletionByTaintManager", "Taint manager: deleting")

    def gone(self, role):
        return raw_pod(role, conditions=[self.TAINTED], deletionTimestamp=ago(-20), deletionGracePeriodSeconds=30)

    def test_the_loss_of_the_head_counts(self):
        status = running_status(workers={"attempt": 1, "pods": ["demo-1-worker"]}, step=7)
        decision = decided(status, ray_job(**RUNNING), self.gone("worker"), self.gone("head"))
        assert (decision.status["phase"], decision.status["rayJobName"]) == ("Restarting", "demo-1")
        assert "recoveringSince" not in decision.status

    def test_one_loss_is_one_fault_of_the_node(self):
        """Two would make the job avoid it, which needs a new RayJob, and so a new place in the queue."""
        fault = {"name": "node-1", "attempts": 1, "reason": "DeletionByTaintManager", "lastTime": ago(3)}
        workers = {"attempt": 1, "pods": ["demo-1-worker"]}
        status = running_status(workers=workers, step=7, recoveringSince=ago(3), faultyNodes=[fault])
        decision = decided(status | {"preemptions": 1}, ray_job(**RUNNING), self.gone("worker"), self.gone("head"))
        after = decision.status
        assert (after["phase"], after["rayJobName"], after["restartsInPlace"]) == ("Restarting", "demo-1", 1)
        assert (after["preemptions"], after["faultyNodes"]) == (1, [fault])


def test_a_rayjob_without_a_queue_never_starts_again():
    """Its quota belongs to no job, and a failed one keeps its head for the logs."""
    for labels, restarts in ((QUEUED, 8), ({}, 0)):
        world = World(labels=labels)
        world.settle()
        assert world.current["spec"]["backoffLimit"] == restarts


def test_the_cache_remembers_how_a_rayjob_ended():
    """KubeRay removes that from its status a moment later."""
    cache, key = Cache(), ("team", "demo")
    cache.put(LORARLJOBS, raw_job())
    ended_as = {}
    versions = (RUNNING, {**RETRYING, "message": HEAD_GONE}, STARTS, {**RUNNING, "failed": 1})
    for number, status in enumerate(versions, 1):
        raw = ray_job(**status)
        raw["metadata"] |= {"resourceVersion": str(number), "namespace": "team"}
        cache.put(RAYJOBS, raw, key)
        (seen,) = cache.observe(key).ray_jobs
        ended_as[number] = seen.last_end and (seen.last_end.message, seen.last_end.ended_at)
    told = (HEAD_GONE, parse.time(ago(5)))
    assert ended_as == {1: None, 2: told, 3: told, 4: told}
