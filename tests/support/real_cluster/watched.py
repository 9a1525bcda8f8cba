"""A job that is looked at all the time, so that the cost of a fault is known."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from support.cluster.client import Api, ApiError
from support.cluster.processes import until

LOOK_SECONDS = 0.1
SETTLED_STEPS = 3
"""A fault strikes a job that has made so many steps since the one before."""

Object = dict[str, Any]


@dataclass(frozen=True)
class Seen:
    """A job's status at a moment."""

    at: float
    status: Object

    @property
    def step(self) -> int:
        return int(self.status.get("step", 0))

    @property
    def resumed_from(self) -> int | None:
        return self.status.get("resumedFromStep")

    @property
    def counters(self) -> tuple[int, int]:
        """Attempts that were the job's own fault, and preemptions."""
        return self.status.get("attempts", 0), self.status.get("preemptions", 0)


@dataclass(frozen=True)
class Cost:
    """What a fault cost.

    Attributes:
        steps_lost: Steps that were made before it and had to be made again.
        seconds: From the fault until the job was a step further than ever before.
    """

    steps_lost: int
    seconds: float


class Watched:
    """A LoRARLJob, and all that its status has said since."""

    def __init__(self, api: Api, namespace: str, name: str) -> None:
        self.api, self.namespace, self.name = api, namespace, name
        self.history: list[Seen] = []
        self._over = threading.Event()

    @property
    def now(self) -> Seen:
        return self.history[-1]

    @property
    def ended(self) -> bool:
        return self.now.status.get("phase") in ("Succeeded", "Failed")

    def until(self, seconds: float, what: str, holds: Callable[[Seen], object]) -> Seen:
        """The newest status, once it is as `holds` says. A job that ends otherwise fails the test at once."""

        def probe() -> Seen | None:
            if holds(self.now):
                return self.now
            assert not self.ended, f"{what}: the job has ended\n{json.dumps(self.now.status, indent=1)}"
            return None

        try:
            return until(seconds, what, probe)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{json.dumps(self.now.status, indent=1)}") from None

    def settle(self, seconds: float) -> Seen:
        """Return when the job trains and has gone a few steps beyond all that it had reached."""
        reached = max((seen.step for seen in self.history), default=0)
        return self.until(seconds, f"{SETTLED_STEPS} more steps", lambda seen: seen.step >= reached + SETTLED_STEPS)

    def cost(self, since: Seen, struck: float, seconds: float, *, anew: bool) -> Cost:
        """Return the cost of a fault at `struck`, when `since` was the newest status, once it is overcome.

        `anew` says whether a new run is to follow: the old one may make another step while it ends.
        """
        start = self.history.index(since)

        def overcome() -> Cost | None:
            cost = cost_of(struck, self.history[start:], anew=anew)
            assert cost or not self.ended, f"the job has ended\n{json.dumps(self.now.status, indent=1)}"
            return cost

        try:
            return until(seconds, "the job is further than it was", overcome)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{json.dumps(self.now.status, indent=1)}") from None

    def pod(self, role: str) -> Object:
        """The job's pod of a role that is there and not about to go; one of them, if there are several."""
        labels = f"lorarl.io/job={self.name},lorarl.io/role={role}"
        staying = (
            one for one in self.api.list("Pod", self.namespace, labels) if "deletionTimestamp" not in one["metadata"]
        )
        return next(staying)

    def look(self) -> None:
        """Look until `close`. While the API server is away nothing is seen."""
        while not self._over.wait(LOOK_SECONDS):
            try:
                job = self.api.get("LoRARLJob", self.name, self.namespace)
            except (ApiError, OSError, http.client.HTTPException):
                continue
            status = (job or {}).get("status", {})
            if not self.history or status != self.now.status:
                self.history.append(Seen(time.monotonic(), status))

    def close(self) -> None:
        """Look no more."""
        self._over.set()


def cost_of(struck: float, history: list[Seen], *, anew: bool) -> Cost | None:
    """Return the cost of a fault at `struck`, from the job's statuses just before and since; None until it is overcome.

    A new run says from which step it resumed. Without a new run nothing was lost.
    """
    since = history[0]
    begun = next((index for index, seen in enumerate(history) if seen.resumed_from != since.resumed_from), None)
    if begun is None:
        beyond = next((seen for seen in history if seen.step > since.step), None)
        return None if anew or beyond is None else Cost(0, round(beyond.at - struck, 1))
    reached = max(seen.step for seen in history[:begun])
    beyond = next((seen for seen in history[begun:] if seen.step > reached), None)
    if beyond is None:
        return None
    # The status may no longer name a step that was published.
    return Cost(max(0, reached - (history[begun].resumed_from or 0)), round(beyond.at - struck, 1))


@contextmanager
def watched(api: Api, namespace: str, name: str) -> Iterator[Watched]:
    """Watch a job until the block ends."""
    job = Watched(api, namespace, name)
    thread = threading.Thread(target=job.look, name=f"watch-{name}", daemon=True)
    thread.start()
    try:
        until(10, f"{name} is there", lambda: job.history)
        yield job
    finally:
        job.close()
        thread.join()
