"""Which replica may write: a `coordination.k8s.io` Lease, with the rules and times of Kubernetes' own controllers.

The clocks of two machines are never compared. A replica counts from when it last saw the lease change, on its own
monotonic clock.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from lorarl_operator.kube.errors import ApiError
from lorarl_operator.kube.resources import LEASES, Resource

log = logging.getLogger(__name__)


class LeaseLostError(Exception):
    """The lease could not be renewed in time, or another replica holds it."""


class LeaseClient(Protocol):
    """The methods of a client that the lease needs."""

    async def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any] | None:
        """An object, or None."""
        ...

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Create an object."""
        ...

    async def replace(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Replace an object at its resourceVersion."""
        ...


@dataclass(frozen=True)
class LeaseTimes:
    """Times in seconds.

    After `duration` without renewal others may take the lease. The holder stops at `renew_deadline`, which is earlier.
    """

    duration: float = 15.0
    renew_deadline: float = 10.0
    retry_period: float = 2.0


class Lease:
    """One replica's snapshot of the lease."""

    def __init__(
        self,
        client: LeaseClient,
        namespace: str,
        name: str,
        identity: str,
        times: LeaseTimes | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`clock` and `sleep` are the monotonic clock and its sleep, in seconds."""
        self._client = client
        self._namespace, self._name, self._identity = namespace, name, identity
        self._times = times or LeaseTimes()
        self._clock, self._sleep = clock, sleep
        self._seen: dict[str, Any] | None = None
        self._seen_at = float("-inf")
        self._renewed_at = float("-inf")
        self._held = False

    def seconds_to_write(self) -> float:
        """The fence: how long a write that starts now may take; 0 if none may start.

        A write must end before any other replica can take the lease, so it gets the rest of the duration.
        """
        if not self._held:
            return 0.0
        age = self._clock() - self._renewed_at
        return self._times.duration - age if age < self._times.renew_deadline else 0.0

    async def acquire(self) -> None:
        """Wait until the lease is ours."""
        while not await self._try():
            holder = self._spec.get("holderIdentity")
            expires_in = self._seen_at + self._seconds_of_holder() - self._clock()
            log.debug("the lease is held by %s", holder)
            # Check at the moment of expiry. A clean hand-over is noticed within one period.
            await self._sleep(max(0.05, min(self._times.retry_period, expires_in)))
        log.info("this replica leads: %s holds the lease %s/%s", self._identity, self._namespace, self._name)

    async def hold(self) -> None:
        """Renew the lease while that succeeds.

        Raises:
            LeaseLostError: A renewal failed, and nothing may be written any more.
        """
        while True:
            await self._sleep(self._times.retry_period)
            renewed = await self._try()
            if not renewed and self._taken_by_another():
                self._held = False
                raise LeaseLostError(
                    f"the lease {self._namespace}/{self._name} was taken by {self._spec.get('holderIdentity')}"
                )
            if self._clock() - self._renewed_at >= self._times.renew_deadline:
                self._held = False
                raise LeaseLostError(
                    f"the lease {self._namespace}/{self._name} was not renewed for {self._times.renew_deadline:.0f} s: "
                    "the API server did not answer, or refused"
                )

    async def release(self) -> None:
        """Release the lease, so that another replica takes it at once. If this fails, the lease expires soon anyway."""
        if not self._held:
            return
        self._held = False
        assert self._seen is not None
        spec = {**self._spec, "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _now()}
        try:
            async with asyncio.timeout(self._times.retry_period):
                await self._client.replace({**self._seen, "spec": spec})
            log.info("the lease was released")
        except (ApiError, TimeoutError) as error:
            log.warning(
                "the lease was not released; another replica can take it in %.0f s: %s", self._times.duration, error
            )

    async def _try(self) -> bool:
        """Try once to take or renew the lease. Return whether it is ours."""
        started = self._clock()
        try:
            async with asyncio.timeout(self._times.renew_deadline / 2):
                taken = await self._take_or_renew()
        except (ApiError, TimeoutError) as error:
            log.warning(
                "the lease %s/%s could not be read or written: %s", self._namespace, self._name, error or "no answer"
            )
            return False
        if taken:
            # Counted from before the request: the server cannot have counted from earlier.
            self._held, self._renewed_at = True, started
        return taken

    async def _take_or_renew(self) -> bool:
        if self._held and self._seen is not None and self._spec.get("holderIdentity") == self._identity:
            try:
                self._note(await self._client.replace(self._claimed(self._seen)))
            except ApiError as error:
                if not error.conflict:
                    raise
                # Another replica changed it, or our last renewal arrived and its answer did not. Read it.
            else:
                return True
        current = await self._client.get(LEASES, self._namespace, self._name)
        try:
            if current is None:
                self._note(await self._client.create(self._claimed(None)))
                return True
            self._note(current)
            if not self._free():
                return False
            self._note(await self._client.replace(self._claimed(current)))
        except ApiError as error:
            if error.conflict or error.already_exists:
                return False
            raise
        return True

    @property
    def _spec(self) -> dict[str, Any]:
        return (self._seen or {}).get("spec") or {}

    def _note(self, lease: dict[str, Any]) -> None:
        if self._seen is None or lease.get("spec") != self._seen.get("spec"):
            self._seen_at = self._clock()
        self._seen = lease

    def _seconds_of_holder(self) -> float:
        return float(self._spec.get("leaseDurationSeconds") or self._times.duration)

    def _free(self) -> bool:
        holder = self._spec.get("holderIdentity")
        return holder in (None, "", self._identity) or self._clock() >= self._seen_at + self._seconds_of_holder()

    def _taken_by_another(self) -> bool:
        return self._spec.get("holderIdentity") not in (None, "", self._identity)

    def _claimed(self, lease: dict[str, Any] | None) -> dict[str, Any]:
        if lease is None:
            lease = {
                "apiVersion": LEASES.api_version,
                "kind": LEASES.kind,
                "metadata": {"namespace": self._namespace, "name": self._name},
            }
        old = lease.get("spec") or {}
        mine = old.get("holderIdentity") == self._identity
        now = _now()
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(self._times.duration),
            "renewTime": now,
            "acquireTime": old["acquireTime"] if mine and old.get("acquireTime") else now,
            "leaseTransitions": int(old.get("leaseTransitions") or 0) + (0 if mine or not old else 1),
        }
        return {**lease, "spec": {**old, **spec}}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
