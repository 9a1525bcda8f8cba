"""An elastic attempt starts on fewer nodes than it asks for, loses some, and gets more: `cluster.minNodes`.

The driver decides on how many machines it trains, by what Ray has (`workers/elastic.py` of the trainer), and reports
the pods. KubeRay keeps the pods of missing workers pending, so they show both when there is room and how much. The
operator has one part in that. KubeRay calls a RayJob Running only once all pods of its RayCluster run. So an attempt
that lacks some gets a RayCluster with fewer replicas, and all of them again as soon as it runs:

    replicas 4, 2 pods placed, 2 pending       `Scale` to 2, once no other pod was placed for a while
    replicas 2, RayJob Running                 `Scale` to 4: two pods are pending from now on
    replicas 4, 3 pods placed                  the driver sees a third machine, and uses it after a later checkpoint

In a queue of Kueue a RayJob has the quota that it was admitted with, so its RayCluster is never scaled. There the
attempt that has waited for long asks again for half of its nodes.
"""

from __future__ import annotations

from lorarl_operator.decide.attempt_end import next_attempt
from lorarl_operator.decide.blockers import not_created
from lorarl_operator.decide.decision import Decision, Event, Scale
from lorarl_operator.decide.elastic import node_range, placed_workers, scaled_cluster
from lorarl_operator.decide.kueue import stop_of
from lorarl_operator.decide.messages import sentences
from lorarl_operator.decide.models import RayCluster, RayJob
from lorarl_operator.decide.news_reasons import News
from lorarl_operator.decide.reasons import Waiting
from lorarl_operator.decide.snapshot import Snapshot
from lorarl_operator.decide.status import RUNNING, Draft


def left_to_start_short(snapshot: Snapshot, ray_job: RayJob) -> float | None:
    """Seconds until an attempt that starts does without its missing workers; None if it lacks none, or too many."""
    cluster = _scalable(snapshot, ray_job)
    placed = placed_workers(snapshot.attempt_pods)
    if cluster is None or not node_range(snapshot.spec).fewest <= len(placed) < cluster.replicas:
        return None
    since = max(pod.scheduled_at or pod.created_at for pod in placed)
    return snapshot.settings.elastic_wait_seconds - (snapshot.now - since).total_seconds()


def start_short(snapshot: Snapshot, ray_job: RayJob) -> tuple[Scale, ...]:
    """Let the attempt start with the workers that have a node. Those that wait for one are asked for again later."""
    cluster, pods = _scalable(snapshot, ray_job), snapshot.attempt_pods
    assert cluster is not None, "left_to_start_short said so"
    placed = {pod.name for pod in placed_workers(pods)}
    waiting = [pod.name for pod in pods if pod.role == "worker" and pod.name not in placed and not pod.node]
    return (Scale(cluster.name, cluster.uid, cluster.group, len(placed), tuple(sorted(waiting))),)


def follow_asked(snapshot: Snapshot, draft: Draft, ray_job: RayJob) -> list[Event]:
    """Write for how many nodes an attempt asks that does not train yet. An Event says that these have become fewer."""
    nodes = node_range(snapshot.spec)
    if not nodes.is_elastic or snapshot.phase == RUNNING:
        return []
    before = draft.counter("nodes")
    cluster = scaled_cluster(snapshot.clusters)
    asked = cluster.replicas if cluster else ray_job.workers or nodes.most
    draft.put("nodes", asked)
    if asked >= ray_job.workers or asked == before:
        return []
    message = sentences(
        f"Attempt {snapshot.attempt} starts on {asked} of {nodes.most} nodes, because no other pod got a node "
        f"within {snapshot.settings.elastic_wait_seconds} s",
        draft.message("Running") if str(draft.reason("Running")) == Waiting.UNSCHEDULABLE else "",
    )
    return [Event("Normal", News.STARTS_SHORT, message)]


def ask_for_all(snapshot: Snapshot, ray_job: RayJob) -> tuple[Scale, ...]:
    """Give a RayCluster that runs all workers of its attempt again. KubeRay keeps the missing ones pending.

    The job may ask for others by now, which its driver does not know: they are for the next attempt.
    """
    cluster, most = _scalable(snapshot, ray_job), ray_job.workers
    if cluster is None or cluster.replicas >= most:
        return ()
    return (Scale(cluster.name, cluster.uid, cluster.group, most, ()),)


def follow_nodes(snapshot: Snapshot, draft: Draft) -> tuple[str, list[Event]]:
    """What the condition says of a running attempt's nodes, and Events of their changes. `status.nodes` is written."""
    nodes = node_range(snapshot.spec)
    if not nodes.is_elastic:
        return "", []
    before, workers = draft.counter("nodes"), snapshot.workers
    now = len(workers.pods) if workers and not workers.lost else before or nodes.most
    draft.put("nodes", now)
    events = []
    if before and now != before and snapshot.phase == RUNNING:
        step = snapshot.status.get("resumedFromStep", 0)
        way = f"with {before} of {nodes.most} nodes before, and {now} now"
        message = f"Attempt {snapshot.attempt} continues after step {step} {way}."
        events.append(Event("Normal", News.GREW if now > before else News.SHRANK, message))
    if now == nodes.most:
        return "", events
    grows = "All workers start again, on more of them" if workers and workers.growing else ""
    refused = not_created(snapshot.job, snapshot.clusters)
    why = f": {refused.message}" if refused else ""
    told = f"It has {now} of {nodes.most} nodes{why}"
    return sentences(told, grows, refused_change(snapshot, "asks for no others")), events


def refused_change(snapshot: Snapshot, without: str) -> str:
    """What an elastic attempt does `without`, because its RayCluster may not be changed; empty if it may."""
    refusal = snapshot.observed.refused("RayCluster", {each.name for each in snapshot.clusters})
    if refusal is None:
        return ""
    return f"It {without}, because RayCluster {refusal.name} is refused: {refusal.message}"


def ask_for_fewer(snapshot: Snapshot, draft: Draft, ray_job: RayJob) -> Decision | None:
    """Ask a queue again for half of the nodes, once the RayJob has waited there for long; otherwise None.

    Kueue admits a RayJob with all its pods or not at all: partial admission is for Jobs of batch/v1.
    """
    nodes, evidence = node_range(snapshot.spec), snapshot.observed.evidence
    fewer = max(nodes.fewest, ray_job.workers // 2)
    workload = evidence.workload if evidence else None
    if not (ray_job.queue and nodes.is_elastic and 0 < fewer < ray_job.workers) or draft.phase == RUNNING:
        return None
    if workload is None or not workload.name or stop_of(ray_job, evidence, snapshot.job.namespace):
        return None
    if any(kind == "QuotaReserved" and holds for kind, holds, *_ in workload.conditions):
        return None
    since = max(ray_job.created_at, draft.since("Running") or ray_job.created_at)
    if (snapshot.now - since).total_seconds() < snapshot.settings.elastic_wait_seconds:
        return None
    message = (
        f"Queue {ray_job.queue} has not admitted attempt {snapshot.attempt} with {ray_job.workers} of {nodes.most} "
        f"nodes within {snapshot.settings.elastic_wait_seconds} s. Attempt {snapshot.attempt + 1} asks for {fewer}."
    )
    return next_attempt(snapshot, draft, Event("Normal", Waiting.FEWER_NODES, message), requested_nodes=fewer)


def nodes_to_ask(snapshot: Snapshot) -> int:
    """For how many nodes the next RayJob asks: for all, but after a queue did not admit so many."""
    nodes, asked = node_range(snapshot.spec), snapshot.draft().counter("requestedNodes")
    return asked if nodes.fewest <= asked <= nodes.most else nodes.most


def _scalable(snapshot: Snapshot, ray_job: RayJob) -> RayCluster | None:
    """The RayCluster of an elastic attempt outside a queue, if its number of workers is known."""
    if ray_job.queue or not node_range(snapshot.spec).is_elastic:
        return None
    found = scaled_cluster(snapshot.clusters)
    refused = found and snapshot.refusal({"kind": "RayCluster", "metadata": {"name": found.name}})
    return None if refused else found
