"""Jobs' lives, each with what happens to it and what must have become of it in the end.

A life is a generator: it does something, and yields what it waits for. All lives run in one thread. They do not know
whether an operator runs at the moment.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from support.cluster import pods
from support.cluster.client import ApiError, Object
from support.cluster.lorarljobs import condition, lorarljob, phase, report
from support.cluster.mirror import Mirror
from support.cluster.platform import Platform

Wait = Callable[[], object]


@dataclass
class Life:
    """One job, and what was expected of it."""

    p: Platform
    mirror: Mirror
    name: str
    faults: list[str] = field(default_factory=list)
    waits_for: str = ""

    @property
    def namespace(self) -> str:
        return self.mirror.namespace

    @property
    def job(self) -> Object:
        return self.mirror.get("LoRARLJob", self.name) or {}

    @property
    def uid(self) -> str:
        uid: str = self.job.get("metadata", {}).get("uid", "")
        return uid

    @property
    def attempt(self) -> str:
        """Name of the attempt's RayJob, as the status has it."""
        name: str = self.job.get("status", {}).get("rayJobName", "")
        return name

    # ---- what people, the trainer and the cluster do

    def create(self, **spec: Any) -> None:
        self.p.api.create(lorarljob(self.namespace, self.name, **spec))

    def suspend(self, wanted: bool) -> None:
        self.p.api.patch("LoRARLJob", self.name, {"spec": {"suspend": wanted}}, self.namespace)

    def delete(self, policy: str = "Background") -> None:
        self.p.api.delete("LoRARLJob", self.name, self.namespace, policy=policy)

    def end(self, status: str, reason: str = "", attempt: str = "") -> None:
        """The driver of the attempt, or of a named one, ends; a failure is reported by the trainer first."""
        attempt = attempt or self.attempt
        if status == "FAILED":
            failure = {"reason": reason, "message": "as the test has it", "attempt": int(attempt.rsplit("-", 1)[1])}
            report(self.p.api, self.namespace, self.name, failure=failure)
        try:
            self.p.finish(self.namespace, attempt, status, reason)
        except ApiError as error:
            if error.status != 404:  # Its pods may be gone already.
                raise

    def evict(self, role: str) -> None:
        for pod in self.p.pods(self.namespace, self.attempt, role):
            pods.evict(self.p.api, pod)

    # ---- what is waited for

    def runs(self, number: int | None = None) -> Wait:
        """The job runs, in this attempt or in any."""
        return self._waiting(f"attempt {number or 'any'} runs", lambda: self._runs(number))

    def is_in(self, wanted: str) -> Wait:
        return self._waiting(f"it is {wanted}", lambda: phase(self.job) == wanted)

    def gone(self) -> Wait:
        return self._waiting("it and its RayJobs are gone", lambda: not self.job and not self._ray_jobs())

    def _runs(self, number: int | None) -> bool:
        ray_job = self.mirror.get("RayJob", self.attempt) or {}
        owned = any(owner["uid"] == self.uid for owner in ray_job.get("metadata", {}).get("ownerReferences", ()))
        running = (
            ray_job.get("status", {}).get("jobStatus") == "RUNNING" and "deletionTimestamp" not in ray_job["metadata"]
        )
        return (
            owned
            and running
            and phase(self.job) == "Running"
            and (number is None or self.attempt == f"{self.name}-{number}")
        )

    def _waiting(self, what: str, holds: Wait) -> Wait:
        self.waits_for = what
        return holds

    def _ray_jobs(self) -> list[Object]:
        return [one for one in self.mirror.all("RayJob") if one["metadata"]["labels"]["lorarl.io/job"] == self.name]

    # ---- what must be

    def expect(
        self, end: str, *, attempts: int = 0, preemptions: int = 0, made: int | None = None, reason: str | None = None
    ) -> None:
        """Compare the end with what it should be; `made` is how many RayJobs there must have been."""
        status = self.job.get("status", {})
        found = {
            "phase": phase(self.job),
            **{key: status.get(key, 0) for key in ("attempts", "preemptions", "restarts")},
        }
        wanted = {"phase": end, "attempts": attempts, "preemptions": preemptions, "restarts": attempts + preemptions}
        if found != wanted:
            self.faults.append(f"{self.name}: {found}, expected {wanted}")
        names = self.mirror.names_made(self.uid)
        if made is not None and names != [f"{self.name}-{number}" for number in range(1, made + 1)]:
            self.faults.append(f"{self.name}: RayJobs {names}, expected {made}")
        if reason is not None and condition(self.job, "Failed").get("reason") != reason:
            self.faults.append(f"{self.name}: {condition(self.job, 'Failed')}, expected {reason}")

    def finished(self) -> None:
        """Nothing but the last attempt's RayJob is left of a finished job."""
        if self.job and [one["metadata"]["name"] for one in self._ray_jobs()] not in ([], [self.attempt]):
            self.faults.append(
                f"{self.name}: RayJobs are left over: {[one['metadata']['name'] for one in self._ray_jobs()]}"
            )


def succeeds(life: Life) -> Iterator[Wait]:
    life.create()
    yield life.runs(1)
    life.end("SUCCEEDED")
    yield life.is_in("Succeeded")
    life.expect("Succeeded", made=1)


def is_suspended_and_resumed(life: Life) -> Iterator[Wait]:
    life.create()
    yield life.runs(1)
    life.suspend(True)
    yield life.is_in("Suspended")
    life.suspend(False)
    yield life.runs(2)
    life.end("SUCCEEDED")
    yield life.is_in("Succeeded")
    life.expect("Succeeded", made=2)


def begins_suspended_and_is_deleted(life: Life) -> Iterator[Wait]:
    life.create(suspend=True)
    yield life.is_in("Suspended")
    life.suspend(False)
    yield life.runs(1)
    life.expect("Running", made=1)
    life.delete()
    yield life.gone()


def is_deleted_with_its_checkpoints(life: Life) -> Iterator[Wait]:
    life.create(checkpoint={"uri": "s3://team/adapters", "deletionPolicy": "Delete"})
    yield life.runs(1)
    life.expect("Running", made=1)
    life.delete()
    yield life.gone()
    if not life.mirror.get("Job", f"lorarl-{life.name}-cleanup"):  # It has no owner; it stays for a while.
        life.faults.append(f"{life.name}: it went without its clean-up")


def is_deleted_in_the_foreground(life: Life) -> Iterator[Wait]:
    life.create()
    yield life.runs(1)
    life.delete(policy="Foreground")
    yield life.gone()


def is_deleted_and_made_again(life: Life) -> Iterator[Wait]:
    life.create()
    yield life.runs(1)
    first = life.uid
    life.delete()
    life.create()
    yield life._waiting("the second runs", lambda: life.uid != first and life._runs(None))
    life.end("SUCCEEDED")
    yield life.is_in("Succeeded")
    life.expect("Succeeded", made=1)


def fails_for_good(life: Life) -> Iterator[Wait]:
    life.create(backoffLimit=1)
    yield life.runs(1)
    life.end("FAILED", "OutOfMemory")
    yield life.runs(2)
    life.end("FAILED", "OutOfMemory")
    yield life.is_in("Failed")
    life.expect("Failed", attempts=2, made=2, reason="OutOfMemory")


def fails_once(life: Life) -> Iterator[Wait]:
    life.create()
    yield life.runs(1)
    life.end("FAILED", "OutOfMemory")
    yield life.runs(2)
    life.end("SUCCEEDED")
    yield life.is_in("Succeeded")
    life.expect("Succeeded", attempts=1, made=2)


def loses_its_worker(life: Life) -> Iterator[Wait]:
    life.create()
    yield life.runs(1)
    attempt = life.attempt
    life.evict(pods.WORKER)
    # The driver notices too, whether the operator does or not.
    life.end("FAILED", "NodeLost", attempt)
    yield life.runs(2)
    life.end("SUCCEEDED")
    yield life.is_in("Succeeded")
    life.expect("Succeeded", preemptions=1, made=2)


def loses_its_head_and_fails(life: Life) -> Iterator[Wait]:
    life.create(backoffLimit=0)
    yield life.runs(1)
    life.evict(pods.HEAD)
    yield life.runs(2)
    life.end("FAILED", "RewardFailed")
    yield life.is_in("Failed")
    life.expect("Failed", attempts=1, preemptions=1, made=2, reason="RewardFailed")


def loses_its_rayjob(life: Life) -> Iterator[Wait]:
    life.create()
    yield life.runs(1)
    life.p.api.delete("RayJob", life.attempt, life.namespace)
    yield life.runs(2)
    life.end("SUCCEEDED")
    yield life.is_in("Succeeded")
    life.expect("Succeeded", preemptions=1, made=2)


def is_suspended_back_and_forth(life: Life) -> Iterator[Wait]:
    life.create()
    for wanted in (True, False, True):
        life.suspend(wanted)
    yield life.is_in("Suspended")
    for wanted in (False, True, False):
        life.suspend(wanted)
    yield life.runs()
    life.suspend(True)
    life.suspend(False)
    # A dashboard that was not there when it was suspended has nothing to do.
    yield life.runs()
    life.suspend(True)
    yield life.is_in("Suspended")
    life.suspend(False)
    yield life.runs()
    life.end("SUCCEEDED")
    yield life.is_in("Succeeded")
    life.expect("Succeeded")


def has_a_deadline(life: Life) -> Iterator[Wait]:
    life.create(activeDeadlineSeconds=15)
    yield life.is_in("Failed")
    life.expect("Failed", made=1, reason="DeadlineExceeded")


def goes_by_itself(life: Life) -> Iterator[Wait]:
    life.create(ttlSecondsAfterFinished=2)
    yield life.runs(1)
    life.end("SUCCEEDED")
    yield life.gone()


Script = Callable[[Life], Iterator[Wait]]
SCRIPTS: tuple[Script, ...] = (
    succeeds,
    is_suspended_and_resumed,
    loses_its_worker,
    is_deleted_with_its_checkpoints,
    fails_for_good,
    is_suspended_back_and_forth,
    loses_its_head_and_fails,
    begins_suspended_and_is_deleted,
    fails_once,
    is_deleted_and_made_again,
    loses_its_rayjob,
    has_a_deadline,
    is_deleted_in_the_foreground,
    goes_by_itself,
)


def live(p: Platform, mirror: Mirror, count: int, may_begin: Callable[[], float], patience: float) -> list[str]:
    """Lead so many lives to their ends; whatever was not as it should be.

    Args:
        p: Where.
        mirror: Its namespace.
        count: How many; the scripts take turns.
        may_begin: Which part of them, from 0 to 1, may have begun by now; asked all the time.
        patience: How many seconds a life may wait for what must come.
    """
    waiting = [
        Life(p, mirror, f"{SCRIPTS[number % len(SCRIPTS)].__name__.replace('_', '-')}-{number}"[:40])
        for number in range(count)
    ]
    order = list(enumerate(waiting))
    going: list[tuple[Life, Iterator[Wait], Wait, float]] = []
    faults: list[str] = []
    while order or going:
        begun = may_begin() * count
        while order and order[0][0] < begun:
            number, life = order.pop(0)
            script = SCRIPTS[number % len(SCRIPTS)](life)
            going.append((life, script, next(script), time.monotonic()))
        still: list[tuple[Life, Iterator[Wait], Wait, float]] = []
        for life, script, wait, since in going:
            if not wait():
                if time.monotonic() - since < patience:
                    still.append((life, script, wait, since))
                else:
                    status = json.dumps(life.job.get("status"), indent=1)
                    life.faults.append(f"{life.name}: {life.waits_for}: not so after {patience:g} s: {status}")
            elif (following := next(script, None)) is not None:
                still.append((life, script, following, time.monotonic()))
        going = still
        mirror.wait_for_news(0.2)
    for life in waiting:
        life.finished()
        faults += life.faults
    return faults
