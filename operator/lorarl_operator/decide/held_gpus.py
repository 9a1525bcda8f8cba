"""For how long a job's pods have held their GPUs.

Costs are charged by it. So it comes from the pods' times and the phases alone: a job's own code may report anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from lorarl_operator.decide.models import Pod
from lorarl_operator.decide.status import PENDING, RUNNING, STARTING, Draft, timestamp

_STARTS = frozenset({PENDING, STARTING})


def count_held(draft: Draft, before: str, pods: Iterable[Pod], gpus: int, now: datetime) -> None:
    """Note since when an attempt holds its GPUs, and add that time when it ends or its queue takes them back.

    Args:
        draft: The next status.
        before: The phase so far.
        pods: The attempt's pods. The first worker or engine that got its node began to hold GPUs.
        gpus: Those of the attempt.
        now: The present. The end of a period is when the operator sees it, so that the sum never falls.
    """
    since = draft.at("gpusHeldSince")
    placed = [pod.scheduled_at for pod in pods if pod.has_devices and pod.scheduled_at and not pod.deletion_asked_at]
    if draft.phase == RUNNING:
        if gpus and before != RUNNING:
            draft.put("gpus", gpus)
            draft.put("gpusHeldSince", timestamp(since or min(placed, default=now)))
        return
    if since is None and (draft.phase in _STARTS or before not in _STARTS):
        return
    began = since or min(placed, default=now)
    seconds = round(gpus * max(0.0, (now - began).total_seconds()))
    draft.put("gpusHeldSince", None)
    if seconds:
        draft.put("heldGpuSeconds", draft.counter("heldGpuSeconds") + seconds)
