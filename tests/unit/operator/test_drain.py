"""A node is drained under a job with `cluster.disruption: AfterCheckpoint`."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lorarl_operator.decide import parse
from lorarl_operator.decide.decision import Create, Delete, Scale, Want
from lorarl_operator.decide.drain import OPEN_SECONDS
from lorarl_operator.decide.models import Evidence, RayCluster, Refusal
from lorarl_operator.decide.snapshot import take_snapshot
from unit.operator.decisions import DELETE, RUNNING, conditions, decided, running_status, status_of
from unit.operator.observed_world import SETTINGS, START, ago, observed, raw_job, raw_pod, raw_ray_job

SPEC = {"cluster": {"disruption": "AfterCheckpoint", "nodes": 2}}
NAME = "lorarl-demo"
CORDONED, OTHERS, NONE = (Evidence(cordoned=frozenset(names)) for names in (["node-1", "node-7"], ["node-7"], []))
PODS = (raw_pod("head", nodeName="node-0"), raw_pod("worker", nodeName="node-1"))


def held(owner="job-uid", **about):
    """The budget, as the cache knows it."""
    owners = [{"uid": owner, "controller": True}]
    return parse.budget(
        {"metadata": {"name": NAME, "uid": "pdb-1", "resourceVersion": "1", "ownerReferences": owners, **about}}
    )


def seen(status=None, evidence=NONE, budget=None, *, spec=SPEC, now=START, pods=PODS, **rest):
    job = raw_job(spec, running_status(step=12, totalSteps=20) | (status or {}))
    return decided(job, raw_ray_job(**RUNNING), pods=list(pods), evidence=evidence, budget=budget, now=now, **rest)


def asked(seconds=5, step=12, **more):
    return {"drain": {"since": ago(seconds), "step": step, **more}}


def published(step):
    return {"adapter": {"uri": "s3://a", "step": step, "version": step}}


def budgets(decision):
    return [
        one.manifest if isinstance(one, Create) else one
        for one in decision.actions
        if (isinstance(one, Create) and one.manifest["kind"] == "PodDisruptionBudget")
        or (isinstance(one, Delete) and one.kind == "PodDisruptionBudget")
    ]


def told(decision):
    return [(event.type, event.reason) for event in decision.events]


def test_while_an_attempt_trains_none_of_its_pods_is_evicted():
    decision = seen()
    (budget,) = budgets(decision)
    assert budget["spec"]["minAvailable"] == 3, "the head and two workers"
    assert budget["spec"]["selector"]["matchLabels"] == {"lorarl.io/job-uid": "job-uid"}
    assert budget["metadata"]["ownerReferences"][0]["uid"] == "job-uid", "it is deleted with the job"
    assert decision.wants_evidence is Want.CORDONED
    assert decision.recheck_seconds == 10
    assert budgets(seen(budget=held())) == []


def test_by_default_no_eviction_waits_and_no_node_is_looked_at():
    for spec in ({}, {"cluster": {"disruption": "Immediate"}}):
        decision = seen(spec=spec, evidence=None)
        assert (budgets(decision), decision.wants_evidence, decision.recheck_seconds) == ([], None, None)
        assert budgets(seen(spec=spec, evidence=None, budget=held())) == [Delete("PodDisruptionBudget", NAME, "pdb-1")]


def test_a_cordoned_node_with_a_pod_asks_the_training_for_a_checkpoint():
    decision = seen(published(8), CORDONED, held())
    assert decision.status["drain"] == {"since": ago(0), "step": 12}
    assert told(decision) == [("Normal", "EvictionWaits")]
    assert "Node node-1 takes no new pods" in decision.events[0].message
    assert "wait for a checkpoint of step 12 or later, at most 120 s" in decision.events[0].message
    again = seen(published(8) | asked(), CORDONED, held())
    assert (again.status, again.events, budgets(again)) == (None, (), []), "it is asked once, and waits"


def test_nodes_without_pods_that_stay_concern_no_job():
    leaves = {"deletionTimestamp": ago(-30), "deletionGracePeriodSeconds": 60}
    elsewhere = [PODS[0], raw_pod("worker", nodeName="node-2"), raw_pod("worker", name="old", **leaves)]
    trains = published(8) | {"workers": {"attempt": 1, "pods": ["demo-1-worker"]}}
    assert seen(trains, CORDONED, held(), pods=elsewhere).status is None


def test_without_news_of_the_nodes_nothing_changes():
    assert seen(published(8) | asked(), None, held()).status is None


@pytest.mark.parametrize(("step", "kept"), [(None, False), (8, False), (11, False), (12, True), (13, True)])
def test_pods_may_go_once_a_checkpoint_keeps_what_was_done(step, kept):
    checkpoint = published(step) if step else {}
    decision = seen(checkpoint | asked() | {"step": 14}, CORDONED, held())
    assert budgets(decision) == [], "first the status says so"
    if not kept:
        assert decision.status is None
        return
    assert decision.status["drain"] == asked(released=ago(0))["drain"]
    assert told(decision) == [("Normal", "EvictionAllowed")]
    then = seen(checkpoint | {"drain": decision.status["drain"], "step": 15}, CORDONED, held())
    assert budgets(then) == [Delete("PodDisruptionBudget", NAME, "pdb-1")]
    after = seen(checkpoint | {"drain": decision.status["drain"], "step": 15}, CORDONED, None)
    assert (budgets(after), after.status) == ([], None)


def test_where_nothing_would_be_lost_nothing_waits():
    for status in (published(12), {"step": 0}):
        decision = seen(status, CORDONED, held())
        assert decision.status["drain"]["released"] == ago(0)
        assert told(decision) == [("Normal", "EvictionAllowed")]


@pytest.mark.parametrize(
    ("pace", "grace", "limit"),
    [
        (None, None, 120),
        (None, 300, 300),
        (30, None, 120),  # twice a step of 30 s, and at least the grace period
        (200, None, 400),
    ],
)
def test_no_eviction_waits_longer_than_a_step_and_a_checkpoint(pace, grace, limit):
    spec = {"cluster": SPEC["cluster"] | ({"terminationGracePeriodSeconds": grace} if grace else {})}
    figures = {"estimatedRemainingSeconds": 8 * pace} if pace else {}
    early = seen(published(8) | figures | asked(limit - 1), CORDONED, held(), spec=spec)
    late = seen(published(8) | figures | asked(limit), CORDONED, held(), spec=spec)
    assert early.status is None
    assert late.status["drain"]["released"] == ago(0)
    assert told(late) == [("Warning", "EvictionAllowed")]
    assert f"within {limit} s" in late.events[0].message


def test_figures_that_make_no_sense_do_not_prolong_the_wait():
    for figures in ({"estimatedRemainingSeconds": 100, "totalSteps": 12}, {"estimatedRemainingSeconds": "long"}):
        assert seen(published(8) | figures | asked(120), CORDONED, held()).status["drain"]["released"]


def test_a_drain_that_comes_long_after_its_cordon_waits_again():
    released = ago(OPEN_SECONDS)
    before = published(12) | asked(OPEN_SECONDS + 60, released=released)
    decision = seen(before | {"step": 40, "totalSteps": 100}, CORDONED)
    assert decision.status["drain"] == {"since": ago(0), "step": 40}
    (budget,) = budgets(seen({"drain": decision.status["drain"], "step": 40}, CORDONED))
    assert budget["kind"] == "PodDisruptionBudget"
    soon = published(12) | asked(60, released=ago(OPEN_SECONDS - 1)) | {"step": 40}
    assert seen(soon, CORDONED).status is None


def test_when_the_drain_is_over_evictions_wait_as_before():
    decision = seen(published(12) | asked(released=ago(1)), OTHERS)
    assert "drain" not in decision.status
    assert budgets(seen(published(12)))


@pytest.mark.parametrize(
    "phase", ["Pending", "Starting", "Restarting", "Suspending", "Suspended", "Succeeded", "Failed"]
)
def test_a_job_that_does_not_train_keeps_no_pod_from_going(phase):
    job = raw_job(SPEC | {"suspend": phase.startswith("Suspend")}, status_of(phase, startTime=ago(50)))
    for ray_jobs in ([raw_ray_job(**RUNNING)], []):
        decision = decided(job, *ray_jobs, pods=list(PODS), budget=held())
        assert budgets(decision) == [Delete("PodDisruptionBudget", NAME, "pdb-1")]


def test_an_attempt_that_recovers_has_nothing_to_publish():
    recovering = {"recoveringSince": ago(5), "workers": {"attempt": 1, "pods": ["x"], "lost": "gone"}}
    assert budgets(seen(recovering, budget=held())) == [Delete("PodDisruptionBudget", NAME, "pdb-1")]


def test_a_job_that_is_deleted_takes_its_budget_along():
    job = raw_job(SPEC | DELETE, running_status(), deletionTimestamp=ago(1), finalizers=["lorarl.io/cleanup"])
    decision = decided(job, raw_ray_job(**RUNNING), budget=held())
    assert budgets(decision) == [Delete("PodDisruptionBudget", NAME, "pdb-1")]
    assert budgets(seen(spec={}, budget=held(deletionTimestamp=ago(1)))) == [], "it is on its way"


def test_the_end_of_an_attempt_forgets_the_drain():
    status = running_status(step=12, totalSteps=20) | asked()
    ended = decided(raw_job(SPEC, status), raw_ray_job(jobDeploymentStatus="Failed", endTime=ago(30)))
    assert ended.status["phase"] == "Restarting"
    assert "drain" not in ended.status


def test_an_operator_that_may_not_list_nodes_holds_nothing_and_says_so():
    decision = seen(evidence=Evidence(refused=True), budget=held())
    assert budgets(decision) == [Delete("PodDisruptionBudget", NAME, "pdb-1")]
    assert "the operator may not list nodes" in conditions(decision)["Running"]["message"]
    assert told(decision) == [("Warning", "EvictionUnguarded")]
    assert seen({"conditions": decision.status["conditions"]}, Evidence(refused=True)).status is None


def test_a_budget_that_is_refused_is_tried_again_later_and_told():
    refusal = Refusal("PodDisruptionBudget", NAME, 403, "Forbidden", "exceeded quota: few", START, 1)
    decision = seen(refusal=refusal)
    assert budgets(decision) == []
    assert "exceeded quota: few" in conditions(decision)["Running"]["message"]
    assert budgets(seen(refusal=refusal, now=START + timedelta(seconds=SETTINGS.refused_seconds + 1)))


@pytest.mark.parametrize("newest_first", [False, True])
def test_two_refused_objects_are_both_left_for_a_while_and_told(newest_first):
    """With room for one refusal, each would be tried as soon as the other was refused, with a status each time."""
    refusals = (
        Refusal("PodDisruptionBudget", NAME, 403, "Forbidden", "no budgets here", START, 1),
        Refusal("RayCluster", "cluster-1", 403, "Forbidden", "no scaling here", START, 1),
    )
    spec = {"cluster": {"nodes": 2, "minNodes": 1, "disruption": "AfterCheckpoint"}}
    cluster = RayCluster("cluster-1", "uid", "1", "job-uid", "demo-1", "", "", replicas=1)
    ray_job = raw_ray_job(**RUNNING)
    ray_job["spec"]["rayClusterSpec"] = {"workerGroupSpecs": [{"groupName": "workers", "replicas": 2}]}
    job = raw_job(spec, running_status(step=12, workers={"attempt": 1, "pods": [PODS[1]["metadata"]["name"]]}))
    parts = {"pods": list(PODS), "evidence": NONE, "ray_clusters": (cluster,)}
    tried = decided(job, ray_job, **parts)
    assert budgets(tried) and any(isinstance(one, Scale) for one in tried.actions)
    decision = decided(job, ray_job, refusals=refusals[::-1] if newest_first else refusals, **parts)
    assert budgets(decision) == [] and not any(isinstance(one, Scale) for one in decision.actions)
    message = conditions(decision)["Running"]["message"]
    assert "no budgets here" in message and "no scaling here" in message


def test_a_budget_of_somebody_else_is_left_alone():
    foreign = held(owner="other")
    refusal = Refusal("PodDisruptionBudget", NAME, 409, "AlreadyExists", "it exists", START, 1)
    assert budgets(seen(budget=foreign, refusal=refusal)) == []
    assert budgets(seen(spec={}, budget=foreign)) == []


def test_a_drain_that_is_not_whole_counts_as_none():
    snapshot = take_snapshot(observed(raw_job(SPEC, running_status(drain={"since": "soon"}))), START, SETTINGS)
    assert snapshot.status["drain"] == {"since": "soon"}
    assert seen({"drain": {"since": "soon", "step": 3}}, CORDONED).status["drain"]["step"] == 12


def test_all_pods_are_guarded_although_the_job_asks_for_fewer_by_now():
    """A restart in the same RayJob has the nodes that the RayJob was created with."""
    ray_job = raw_ray_job(**RUNNING)
    ray_job["spec"]["rayClusterSpec"] = {"workerGroupSpecs": [{"groupName": "workers", "replicas": 4}]}
    decision = decided(raw_job(SPEC, running_status()), ray_job, pods=list(PODS), evidence=NONE)
    (budget,) = budgets(decision)
    assert budget["spec"]["minAvailable"] == 5, "the head and the four workers that exist"
