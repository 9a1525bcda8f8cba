"""What may change while a job runs in a cluster: how many steps it makes, and whether some of its pods must end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from lorarl_api.faults import ManifestError
from lorarl_api.load import load_job
from lorarl_trainer.protocols.steering import Steering
from lorarl_trainer.protocols.workers import Workers

LOOK_SECONDS, LOOK_AGAIN_SECONDS = 5.0, 60.0
"""Time between two looks at the job's status, and the same after one without an answer."""


class PodSteering:
    """Looks at the mounted manifest and at the workers' pods once per step, and now and then at the job's status."""

    def __init__(
        self,
        manifest: Path,
        workers: Workers,
        drain: Callable[[], str] | None = None,
        has_room: Callable[[], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make one for these workers.

        Args:
            manifest: in a mounted ConfigMap, which Kubernetes updates within about a minute.
            workers: those whose pods may have to end.
            drain: says since when a drain waits for a checkpoint; None where none does.
            has_room: says whether there are machines for more workers; None where no more are wanted.
            clock: seconds that never go back.
        """
        self._manifest, self._workers, self._drain, self._clock = manifest, workers, drain, clock
        self._has_room = has_room
        self._seen: bytes | None = None
        self._answered, self._next_look = "", float("-inf")

    async def __call__(self, total_steps: int, stopping: bool) -> Steering:
        """Return what the run should do from now on. Today it makes `total_steps` steps, or is already stopping."""
        steps, warnings = self._steps(total_steps)
        draining = not stopping and await self._workers.drain_asked()
        if draining:
            warnings.append("a worker's pod is about to be removed: publishing a checkpoint")
        asked = not stopping and await self._checkpoint_asked()
        if asked:
            warnings.append("a node of the job is being drained: publishing a checkpoint before its pods go")
        grows = not stopping and not draining and await self._grows()
        return Steering(steps, draining, asked, grows, tuple(warnings))

    async def _grows(self) -> bool:
        if self._has_room is None:
            return False
        try:
            return await asyncio.to_thread(self._has_room)
        except Exception:  # noqa: BLE001 - without an answer the training continues with the workers that it has
            return False

    async def _checkpoint_asked(self) -> bool:
        """Return whether a drain waits for a checkpoint, once for each drain."""
        if self._drain is None or self._clock() < self._next_look:
            return False
        self._next_look = self._clock() + LOOK_AGAIN_SECONDS
        try:
            since = await asyncio.to_thread(self._drain)
        except Exception:  # noqa: BLE001 - without an answer the training continues as if there were no drain
            return False
        self._next_look = self._clock() + LOOK_SECONDS
        is_new = since not in ("", self._answered)
        self._answered = since
        return is_new

    def _steps(self, total_steps: int) -> tuple[int, list[str]]:
        text = self._manifest.read_bytes()
        if text == self._seen:
            return total_steps, []
        self._seen = text
        try:
            steps = load_job(self._manifest).spec.trainer.steps
        except ManifestError as error:
            return total_steps, [
                f"{self._manifest} has changed and cannot be read, so the job keeps its {total_steps} steps: {error}"
            ]
        changed = [f"spec.trainer.steps is now {steps}, was {total_steps}"] if steps != total_steps else []
        return steps, changed
