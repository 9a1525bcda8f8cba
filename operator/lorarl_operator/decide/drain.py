"""Evictions that wait for a checkpoint: `cluster.disruption: AfterCheckpoint`.

While an attempt trains, a PodDisruptionBudget refuses all evictions of its pods. No one else hears of a refusal, but a
drain cordons its node first. So a cordoned node with pods of the attempt counts as a drain:

    status.drain is written: since, and the steps that are done    the trainer reads that and publishes a checkpoint
    the checkpoint keeps these steps, or the time is over          `released` is written, and the budget is deleted

A node may stay cordoned for hours before it is drained. So an eviction that has not come after a while must wait again.
The budget follows from the status alone: whatever ends the attempt, or kills the operator, it is deleted.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lorarl_operator.decide.decision import Action, Create, Delete, Event, Want
from lorarl_operator.decide.elastic import node_range
from lorarl_operator.decide.messages import sentences
from lorarl_operator.decide.news_reasons import News
from lorarl_operator.decide.parse import time
from lorarl_operator.decide.snapshot import Snapshot
from lorarl_operator.decide.status import RUNNING, Draft, timestamp
from lorarl_operator.decide.valid_spec import section, whole_number
from lorarl_operator.manifests.budget import budget

LOOK_SECONDS = 10.0
"""Seconds between looks at the nodes."""
OPEN_SECONDS = 300.0
"""For how long pods may be evicted once they may. Drains ask every few seconds."""
_DEFAULT_GRACE_SECONDS = 120
_OFF = "Evictions do not wait for a checkpoint (cluster.disruption)"


@dataclass(frozen=True, slots=True)
class Drain:
    """`status.drain`: when the training was asked for a checkpoint of which step, and since when pods may go."""

    since: datetime
    step: int
    released: datetime | None


def drain_of(status: dict[str, Any]) -> Drain | None:
    """The drain in a status; None if there is none, or it is not whole."""
    match status.get("drain"):
        case {"since": since, "step": int(step), **rest} if found := time(since):
            return Drain(found, step, time(rest.get("released")))
    return None


def budget_actions(snapshot: Snapshot) -> tuple[Action, ...]:
    """Create the budget, or delete it, as the stored status demands."""
    existing, wanted = snapshot.observed.budget, _refuses_evictions(snapshot)
    if existing is not None and existing.owner_uid == snapshot.job.uid:
        gone = wanted or existing.deleted_at
        return () if gone else (Delete("PodDisruptionBudget", existing.name, existing.uid),)
    manifest = budget(snapshot.job, _nodes(snapshot))
    return (Create(manifest),) if wanted and not snapshot.refusal(manifest) else ()


def _refuses_evictions(snapshot: Snapshot) -> bool:
    """Whether evictions wait. An attempt that starts or waits for workers has nothing that is worth the wait."""
    evidence, drain = snapshot.observed.evidence, drain_of(snapshot.status)
    trains = snapshot.phase == RUNNING and snapshot.recovering_since is None and not snapshot.job.deleted_at
    blind = evidence is not None and evidence.refused
    return is_guarded(snapshot) and trains and not blind and (drain is None or drain.released is None)


def is_guarded(snapshot: Snapshot) -> bool:
    """Whether the job wants its evictions to wait."""
    return section(snapshot.spec, "cluster").get("disruption") == "AfterCheckpoint"


def wants(snapshot: Snapshot) -> Want | None:
    """What to fetch about a running attempt."""
    return Want.CORDONED if is_guarded(snapshot) else None


def follow_drain(snapshot: Snapshot, draft: Draft) -> list[Event]:
    """Ask for a checkpoint if a node of the running attempt is being drained, and let its pods go after that."""
    evidence = snapshot.observed.evidence
    if not is_guarded(snapshot) or evidence is None or evidence.cordoned is None:
        return []  # Without evidence there is no news.
    # Engines and environments have nothing to keep, and the budget lets their pods go.
    trains = (pod for pod in snapshot.attempt_pods if not pod.is_spare and not pod.deletion_asked_at)
    drained = sorted({pod.node for pod in trains} & evidence.cordoned)
    if not drained:
        draft.put("drain", None)
        return []
    drain, events = drain_of(snapshot.status), []
    if drain is None or _is_over(drain, snapshot.now):
        drain = Drain(snapshot.now, int(snapshot.status.get("step", 0)), None)
        if not _keeps(snapshot, drain):
            message = f"Node {drained[0]} takes no new pods. {_wait(snapshot, drain)}"
            events.append(Event("Normal", News.EVICTION_WAITS, message))
    if drain.released is None and (why := _releases(snapshot, drain)):
        drain = Drain(drain.since, drain.step, snapshot.now)
        events.append(why)
    draft.put("drain", _written(drain))
    return events


def next_look(snapshot: Snapshot) -> float | None:
    """Seconds until the nodes, or the time of a wait, should be looked at again."""
    return LOOK_SECONDS if is_guarded(snapshot) else None


def unguarded(snapshot: Snapshot) -> str:
    """Why evictions do not wait, although the job wants that, and what to do; empty if they do."""
    evidence, refusal = snapshot.observed.evidence, snapshot.observed.refused("PodDisruptionBudget")
    if not is_guarded(snapshot):
        return ""
    if evidence is not None and evidence.refused:
        return f"{_OFF}: the operator may not list nodes. With watchNamespaces it cannot; otherwise run helm upgrade."
    if refusal is not None:
        return sentences(f"{_OFF}: PodDisruptionBudget {refusal.name} is refused: {refusal.message}")
    return ""


def _releases(snapshot: Snapshot, drain: Drain) -> Event | None:
    """The Event with which pods may be evicted; None while they wait."""
    if _keeps(snapshot, drain):
        message = f"A checkpoint keeps all {drain.step} steps that were done: the job's pods may be evicted."
        return Event("Normal", News.EVICTION_ALLOWED, message)
    limit = wait_seconds(snapshot)
    if 0 <= (snapshot.now - drain.since).total_seconds() < limit:
        return None
    message = (
        f"The job's pods may be evicted, although no checkpoint of step {drain.step} or later was published within "
        f"{limit:.0f} s. If that is too short, raise cluster.terminationGracePeriodSeconds."
    )
    return Event("Warning", News.EVICTION_ALLOWED, message)


def _keeps(snapshot: Snapshot, drain: Drain) -> bool:
    step = snapshot.status.get("adapter", {}).get("step")
    return drain.step == 0 or (isinstance(step, int) and step >= drain.step)


def _is_over(drain: Drain, now: datetime) -> bool:
    return drain.released is not None and (now - drain.released).total_seconds() >= OPEN_SECONDS


def wait_seconds(snapshot: Snapshot) -> float:
    """The longest wait for a checkpoint, in seconds.

    The training finishes a step first. Its pace has the share of checkpoints and evaluations in it, and a step may take
    longer than the mean. By its definition the grace period also has room for a step and a checkpoint.
    """
    grace = whole_number(section(snapshot.spec, "cluster").get("terminationGracePeriodSeconds"), _DEFAULT_GRACE_SECONDS)
    remaining, status = snapshot.status.get("estimatedRemainingSeconds", 0), snapshot.status
    steps = status.get("totalSteps", 0) - status.get("step", 0)
    return max(float(grace or 0), 2 * remaining / steps if steps > 0 else 0.0)


def _wait(snapshot: Snapshot, drain: Drain) -> str:
    limit = wait_seconds(snapshot)
    return f"Evictions of the job's pods wait for a checkpoint of step {drain.step} or later, at most {limit:.0f} s."


def _written(drain: Drain) -> dict[str, Any]:
    released = {"released": timestamp(drain.released)} if drain.released else {}
    return {"since": timestamp(drain.since), "step": drain.step, **released}


def _nodes(snapshot: Snapshot) -> int:
    """The most nodes that the attempt has. The job may ask for fewer by now, which is for the next attempt."""
    asked = snapshot.current.workers if snapshot.current else 0
    return max(node_range(snapshot.spec).most, asked)
