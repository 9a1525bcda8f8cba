"""An attempt that has lost workers and continues with new ones: what the status says meanwhile, and when it ends."""

from __future__ import annotations

from datetime import timedelta

from lorarl_operator.decide.attempt_end import count_outcome, end_attempt, no_progress
from lorarl_operator.decide.attempt_progress import outcome_of
from lorarl_operator.decide.blockers import starting
from lorarl_operator.decide.decision import Decision, Event
from lorarl_operator.decide.elastic import node_range
from lorarl_operator.decide.messages import resumes, sentences
from lorarl_operator.decide.models import RayJob
from lorarl_operator.decide.outcome import Unsettled
from lorarl_operator.decide.pod_ends import Kind, Outcome, ended
from lorarl_operator.decide.reasons import Ended, Waiting
from lorarl_operator.decide.recovery import Workers, failed_replacement, is_complete, to_delete, unreplaced
from lorarl_operator.decide.snapshot import Snapshot
from lorarl_operator.decide.status import RUNNING

_LOOK_SECONDS = 10.0


def recover(snapshot: Snapshot, ray_job: RayJob) -> Decision | None:
    """What to do about an attempt that has lost workers; None if it has not, or if that ends it as any other loss."""
    workers, outcome = snapshot.workers, outcome_of(snapshot, ray_job)
    may = snapshot.phase == RUNNING and ray_job.deployment_status == "Running" and not ray_job.suspended
    if not may or workers is None or not snapshot.settings.recovery_seconds:
        return None
    if (moment := _until_known(snapshot, workers, outcome)) is not None:
        return Decision(recheck_seconds=moment)
    lost = _loss(snapshot, workers, outcome)
    return _wait(snapshot, ray_job, workers, lost) if lost else None


def _until_known(snapshot: Snapshot, workers: Workers, outcome: Outcome | Unsettled | None) -> float | None:
    """Seconds until the cause of a loss should be known that only the trainer has reported so far; None if it is known.

    A worker hears that it must leave before anybody else hears why. The job itself may be the cause, as of a full disk.
    """
    if snapshot.recovering_since or not workers.lost or isinstance(outcome, Outcome):
        return None
    if isinstance(outcome, Unsettled):
        return outcome.seconds
    reported = snapshot.job.reported_at
    if reported is None:
        return None
    left = snapshot.settings.settle_seconds - max(0.0, (snapshot.now - reported).total_seconds())
    return left if left > 0 else None


def _loss(snapshot: Snapshot, workers: Workers, outcome: Outcome | Unsettled | None) -> Outcome | None:
    """The loss of workers from which the attempt may recover."""
    if isinstance(outcome, Outcome):
        return outcome if outcome.kind is Kind.PREEMPTED and outcome.lost_worker else None
    if workers.lost:
        return ended(Ended.NODE_LOST, workers.lost)
    if snapshot.recovering_since and not is_complete(workers, snapshot.attempt_pods):
        return Outcome(Kind.PREEMPTED, snapshot.draft().reason("Disrupted"), snapshot.draft().message("Disrupted"))
    return None


def _wait(snapshot: Snapshot, ray_job: RayJob, workers: Workers, lost: Outcome) -> Decision:
    """Wait for new workers, within the time that the operator allows; otherwise end the attempt."""
    began = snapshot.recovering_since
    waited = (snapshot.now - began).total_seconds() if began else 0.0
    elastic = node_range(snapshot.spec).is_elastic
    # An elastic driver waits for new workers before it does without them, and has as long as others after that.
    alone = snapshot.settings.elastic_wait_seconds if elastic else 0
    limit = snapshot.settings.recovery_seconds + alone
    if began:
        pods = (*snapshot.attempt_pods, *snapshot.all_departed)
        if end := failed_replacement(pods, workers, began) or unreplaced(workers, snapshot.attempt_pods, waited):
            return end_attempt(snapshot, end)
        if waited >= limit:
            late = f"The lost workers were not replaced within {limit} s. {lost.message}"
            return end_attempt(snapshot, Outcome(Kind.PREEMPTED, lost.reason, late, lost.faulty_node))
    draft = snapshot.draft()
    if not began:
        count_outcome(snapshot, draft, lost)
        if stuck := no_progress(snapshot, draft, lost):
            return stuck
        draft.stamp("recoveringSince")
    # An engine that waits, too, is not what the training waits for.
    trains = [pod for pod in snapshot.attempt_pods if not pod.is_spare]
    blocker = starting(snapshot.observed, ray_job, snapshot.clusters, trains, (), snapshot.now)
    why = draft.message("Disrupted").removeprefix(f"Attempt {snapshot.attempt}: ")
    message = sentences(
        f"Attempt {snapshot.attempt} lost a worker ({draft.reason('Disrupted')}): {why}",
        f"It {resumes(snapshot.spec)} with a new one{f', or without after {alone} s' if elastic else ''}",
        blocker.message if blocker.stuck else "",
    )
    draft.condition("Running", False, Waiting.RECOVERING, message)
    event = () if began else (Event("Warning", Waiting.RECOVERING, message),)
    patience = timedelta(seconds=snapshot.settings.pods_gone_seconds)
    gone = to_delete(workers, snapshot.attempt_pods, waited, snapshot.now, patience) if began else []
    return snapshot.decision(draft, *event, actions=gone, recheck=min(_LOOK_SECONDS, max(0.0, limit - waited)))
