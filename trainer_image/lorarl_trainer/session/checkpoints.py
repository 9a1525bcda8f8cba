"""A run's checkpoints: what their cards show, and what is reported of them once they are published."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.checkpoint import Best, Published
from lorarl_trainer.checkpoint.contents import ADAPTER
from lorarl_trainer.checkpoint.open import best_by
from lorarl_trainer.errors import LorarlError, StorageError, WorkerError
from lorarl_trainer.progress import BestFound, CheckpointDone, Progress, Warned
from lorarl_trainer.protocols.workers import DriverState, Workers

FIRST_RESULTS, STEP_RESULTS = "before training", "after this step"
"""The columns of results on a model card."""
RESCUE_SECONDS = 60.0
"""How long checkpoints that are still uploading may take when the loop has failed."""
AWAITED_SECONDS, _LOOK_SECONDS = 60.0, 0.1
"""How long the training waits for a checkpoint that a drain waits for, and the time between two looks at it."""


@dataclass
class RunCheckpoints:
    """The checkpoints of a run, which the first worker uploads.

    Attributes:
        step: of the newest one that was handed to the uploader or resumed from.
        adapter_uri: the newest adapter that this run published, or resumed from.
        results: what the model card of the next one shows: columns of values by name.
        clock: seconds that never go back.
    """

    spec: LoRARLJobSpec
    workers: Workers
    progress: Progress
    step: int = 0
    adapter_uri: str | None = None
    results: dict[str, dict[str, float]] = field(default_factory=dict)
    best: Best | None = None
    clock: Callable[[], float] = time.monotonic
    _reported: int = 0
    _since: float = field(init=False)

    def __post_init__(self) -> None:
        """Count from the start of the run, which resumes from the newest checkpoint."""
        self._since = self.clock()

    def is_overdue(self) -> bool:
        """Return whether the newest checkpoint is older than checkpoint.everySeconds."""
        limit = self.spec.checkpoint.every_seconds
        return limit is not None and self.clock() - self._since >= limit

    async def publish(self, step: int, adapter_version: int, driver: DriverState) -> None:
        """Hand a checkpoint of this step to the uploader."""
        await self.workers.publish(step, adapter_version, driver, self.results)
        self.step, self._since = step, self.clock()

    async def complete(self, step: int, found: Mapping[str, float]) -> None:
        """Add a step's evaluations, columns of metrics.jsonl, to its checkpoint. All cards show those of step 0."""
        self.results.setdefault(FIRST_RESULTS if step == 0 else STEP_RESULTS, {}).update(found)
        if step and step == self.step:
            by = best_by(self.spec)
            await self.workers.complete(step, self.results, found.get(by.metric) if by else None)

    async def report_published(self) -> None:
        """Report what has been published; raise if something cannot be."""
        if self._reported < self.step:
            self.report(await self.workers.uploads())
        await self._report_best()

    async def await_published(self) -> None:
        """Report the newest checkpoint as soon as it is published. The training continues if that takes long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(AWAITED_SECONDS):
                while self._reported < self.step:
                    await asyncio.sleep(_LOOK_SECONDS)
                    await self.report_published()

    async def drain(self) -> None:
        """Wait until every checkpoint is published."""
        self.report(await self.workers.drain_uploads())
        await self._report_best()

    async def finish(self) -> None:
        """Record in the job's folder that all steps are made. Without that, the folder counts as used for longer."""
        try:
            await self.workers.finish()
        except LorarlError as error:
            self.progress.emit(Warned(f"the end of the training is not recorded in the store: {error}"))

    async def rescue(self, failure: Exception, seconds: float = RESCUE_SECONDS) -> None:
        """After a failure of the loop, publish what was handed over before, or keep it on the worker's disk.

        The failure itself matters more: what goes wrong here is at most a warning.
        """
        try:
            async with asyncio.timeout(2 * seconds):
                try:
                    self.report(await self.workers.drain_uploads(seconds))
                except StorageError:
                    # Those before the one that failed, or whose evaluation could not be recorded.
                    self.report(await self.workers.published())
                    raise
        except (LorarlError, TimeoutError) as error:
            if not isinstance(error, WorkerError) and str(error) != str(failure):
                why = str(error) or "the workers did not answer in time"
                self.progress.emit(Warned(f"the last checkpoints could not be published after the failure: {why}"))

    def report(self, published: Sequence[Published]) -> None:
        """Report those that were not reported yet."""
        for done in published:
            for warning in done.warnings:
                self.progress.warn_once(warning, warning)
            if done.step > self._reported:
                self._reported, self.adapter_uri = done.step, done.adapter_uri
                self.progress.emit(
                    CheckpointDone(
                        step=done.step,
                        uri=done.adapter_uri,
                        version=done.adapter_version,
                        sha256=done.adapter_sha256,
                        published_at=done.published_at,
                    )
                )

    async def _report_best(self) -> None:
        """Report the best one if it is another one than before."""
        if self.spec.checkpoint.keep_best is None:
            return
        best = await self.workers.best()
        if best is not None and best != self.best:
            self.best = best
            job_uri = self.adapter_uri and self.adapter_uri.rsplit("/", 2)[0]  # above a published adapter's
            uri = f"{job_uri}/{best.path}/{ADAPTER}" if job_uri else best.path
            self.progress.emit(
                BestFound(
                    step=best.step, uri=uri, metric=best.metric, value=best.value, sha256=best.adapter_sha256 or None
                )
            )
