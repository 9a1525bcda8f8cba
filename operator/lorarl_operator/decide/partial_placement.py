"""An attempt that holds some of its machines while it waits for the others.

A scheduler that places pods one at a time may give two jobs a part of what each needs, and then neither ever runs. So
such an attempt gives its machines back after a while, and the job tries again later. No failure is counted: nothing is
wrong but the moment. A queue of Kueue or a gang scheduler places all pods of a job together.
"""

from __future__ import annotations

from zlib import crc32

from lorarl_operator.decide import backoff
from lorarl_operator.decide.attempt_end import next_attempt
from lorarl_operator.decide.blockers import Blocker
from lorarl_operator.decide.decision import Decision, Event
from lorarl_operator.decide.messages import sentences
from lorarl_operator.decide.models import Pod, RayJob
from lorarl_operator.decide.reasons import Waiting
from lorarl_operator.decide.snapshot import Snapshot
from lorarl_operator.decide.status import Draft


def left_to_place(snapshot: Snapshot, ray_job: RayJob, blocker: Blocker) -> float | None:
    """Seconds until the attempt gives its machines back; None if it holds none, or waits for no other.

    Jobs that block each other must not give up together, so the limit differs by up to a half among them.
    """
    limit = snapshot.settings.partly_placed_seconds
    placed, waiting = _placed(snapshot)
    if not limit or ray_job.queue or blocker.reason != Waiting.UNSCHEDULABLE or not placed or not waiting:
        return None
    since = max(pod.scheduled_at or pod.created_at for pod in placed)
    own_limit = limit * (1 + crc32(snapshot.job.uid.encode()) % 100 / 200)
    return own_limit - (snapshot.now - since).total_seconds()


def give_back(snapshot: Snapshot, draft: Draft, blocker: Blocker) -> Decision:
    """End the attempt. The next one follows when others have had time to take the machines."""
    placed, waiting = _placed(snapshot)
    held = ", ".join(sorted({pod.node for pod in placed}))
    delay = backoff.delay(Waiting.PARTLY_PLACED, draft, snapshot.settings)
    message = sentences(
        f"Attempt {snapshot.attempt} had {len(placed)} of {len(placed) + len(waiting)} pods placed (on {held}) "
        f"and gave the machines back. {blocker.message}",
        f"Attempt {snapshot.attempt + 1} follows in {delay:g} s",
        "A queue of Kueue or a gang scheduler places all pods together",
    )
    return next_attempt(snapshot, draft, Event("Warning", Waiting.PARTLY_PLACED, message))


def _placed(snapshot: Snapshot) -> tuple[list[Pod], list[Pod]]:
    """The pods of workers and engines that have a node, and those that wait for one."""
    pods = [pod for pod in snapshot.attempt_pods if pod.has_devices and not pod.deletion_asked_at]
    return [pod for pod in pods if pod.node], [pod for pod in pods if not pod.node and not pod.gated]
