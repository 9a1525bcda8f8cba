"""For how long a job's pods have held their GPUs.

Costs are charged by it. So it comes from the pods' times and the phases alone: a job's own code may report anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from lorarl_operator.decide.models import Pod
from lorarl_operator.decide.status import PENDING, RUNNING, STARTING, Draft, timestamp

_STARTS = frozenset({PENDING, STARTING})


def count_held(
    draft: Draft,
    before: str,
    pods: Iterable[Pod],
    gpus: int,
    by_role: Mapping[str, int],
    now: datetime,
    before_gpus: int | None = None,
) -> None:
    """Note since when an attempt holds its GPUs, and add that time when it ends or its queue takes them back.

    Args:
        draft: The next status.
        before: The phase so far.
        pods: The attempt's pods. The first worker or engine that got its node began to hold GPUs.
        gpus: Those of the attempt.
        by_role: Those of one pod, by its role.
        before_gpus: Those that the status says it has held; None if their number does not change while it runs.
        now: The present. The end of a period is when the operator sees it, so that the sum never falls.
    """
    since, held = draft.at("gpusHeldSince"), gpus if before_gpus is None else before_gpus
    own = [pod for pod in pods if pod.has_devices and not pod.deletion_asked_at]
    each = [(pod.scheduled_at, by_role[pod.role]) for pod in own if pod.scheduled_at]
    placed = [at for at, _ in each]
    changes = before_gpus is not None
    if draft.phase == RUNNING:
        if gpus and (before != RUNNING or (changes and since is None)):
            draft.put("gpus", gpus)
            draft.put("gpusHeldSince", timestamp(since or (now if changes else min(placed, default=now))))
            if changes and since is None:
                _add_each(draft, each, now)
        elif since and gpus != held:
            draft.put("gpus", gpus)
            draft.put("gpusHeldSince", timestamp(now))
            _add(draft, held, since, now)
        return
    if since is None and (draft.phase in _STARTS or before not in _STARTS):
        return
    draft.put("gpusHeldSince", None)
    if changes and since is None:
        _add_each(draft, each, now)
    else:
        _add(draft, held if since else gpus, since or min(placed, default=now), now)


def _add_each(draft: Draft, each: Iterable[tuple[datetime, int]], now: datetime) -> None:
    """Add the time of each pod's GPUs, from when it got its node."""
    for at, gpus in each:
        _add(draft, gpus, at, now)


def _add(draft: Draft, gpus: int, since: datetime, now: datetime) -> None:
    if seconds := round(gpus * max(0.0, (now - since).total_seconds())):
        draft.put("heldGpuSeconds", draft.counter("heldGpuSeconds") + seconds)
