"""What a run holds while it trains, and the clock of a step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.algorithms import Algorithm
from lorarl_trainer.algorithms.adaptive_kl import adapted
from lorarl_trainer.algorithms.policy_gradient import PolicyGradient
from lorarl_trainer.checkpoint import Best, Published
from lorarl_trainer.checkpoint.contents import ADAPTER
from lorarl_trainer.checkpoint.open import best_by
from lorarl_trainer.data.curriculum import Curriculum, row_key
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.errors import LorarlError, StorageError, WorkerError
from lorarl_trainer.progress import BestFound, CheckpointDone, Progress, StartedUp, StepDone, Warned
from lorarl_trainer.protocols.rollouts import KeepBatch, Rollouts
from lorarl_trainer.protocols.steering import Steer
from lorarl_trainer.protocols.workers import DriverState, Resumed, Workers
from lorarl_trainer.samples.agreement import AgreementLimits
from lorarl_trainer.schedule import evaluations_due, is_due
from lorarl_trainer.timing import StartClock, with_worker

FIRST_RESULTS, STEP_RESULTS = "before training", "after this step"
"""The columns of results on a model card."""
RESCUE_SECONDS = 60.0
"""How long checkpoints that are still uploading may take when the loop has failed."""


class StepClock:
    """Where a step's time goes: phases that workers measured, phases timed here, and the rest as `other`."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._phases: dict[str, float] = {}

    def add(self, phase: str, seconds: float) -> None:
        """Count seconds that a worker measured."""
        self._phases[phase] = self._phases.get(phase, 0.0) + seconds

    def add_all(self, phases: Mapping[str, float]) -> None:
        """Count the seconds of several phases."""
        for phase, seconds in phases.items():
            self.add(phase, seconds)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a block."""
        start = time.perf_counter()
        yield
        self.add(name, time.perf_counter() - start)

    def finish(self, step: StepDone) -> StepDone:
        """Return the step with its seconds by phase, which add up to the whole, and its speed."""
        elapsed = time.perf_counter() - self._start
        seconds = self._phases | {"other": max(0.0, elapsed - sum(self._phases.values()))}
        return replace(step, seconds=seconds, tokens_per_second=step.tokens / sum(seconds.values()))


@dataclass
class Session:
    """A run: its parts, and where it is.

    Attributes:
        rollouts: where each step's samples come from.
        stop: set when the run has been asked to end after a checkpoint.
        clock: times this process's start.
        total_steps: steps to make in all; the manifest's, unless `steer` changes it.
        families: the names of the modules with an adapter (q_proj).
        computes: the workers' GPU, and how many of them share a model: what their rounding depends on.
        adapter_version: the newest version, which every engine holds. The first sync uses it; each step adds one.
        limits: how well engine and trainer must agree, once `guards.start` has found out.
        published_step: the step of the newest checkpoint that was handed to the uploader or resumed from.
        evaluated: whether the step that the run resumes from was evaluated; None if that is not known.
        steer: says once per step what has changed for the job; None if nothing can.
        adapter_uri: the newest adapter that this run published.
        leaving: a worker's machine is about to be removed, so the workers end after a checkpoint.
        withheld_in_a_row: updates that were withheld since the last one that was made, see `guards.nonfinite`.
        results: what the model card of the next checkpoint shows: columns of values by name.
        keep: keeps each step's samples; None for nothing.
        kl_coefficient: the present weight of a KL penalty that keeps a divergence; None where it is fixed.
        curriculum: what decides which rows take their turn, the same object as in the rollouts' stream of rows.
    """

    spec: LoRARLJobSpec
    workers: Workers
    algorithm: Algorithm
    rollouts: Rollouts
    progress: Progress
    stop: asyncio.Event
    clock: StartClock
    total_steps: int
    families: Sequence[str] = ()
    computes: tuple[str, tuple[int, int]] | None = None
    adapter_version: int = 1
    limits: AgreementLimits | None = None
    published_step: int = 0
    evaluated: bool | None = None
    steer: Steer | None = None
    adapter_uri: str | None = None
    leaving: bool = False
    withheld_in_a_row: int = 0
    results: dict[str, dict[str, float]] = field(default_factory=dict)
    best: Best | None = None
    keep: KeepBatch | None = None
    kl_coefficient: float | None = None
    curriculum: Curriculum | None = None
    _reported_step: int = 0

    def adapt_kl(self, step: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """Let the weight of the KL penalty follow a step's divergence; return the step's own weight as a metric.

        It stays while the critic learns alone, when no weight could move the policy, and where no token is the policy's
        own, so that its divergence is not known.
        """
        kl = self.spec.algorithm.kl
        if self.kl_coefficient is None or kl is None or kl.target is None:
            return {}
        used, critic = self.kl_coefficient, self.algorithm.critic
        if "kl" in metrics and not (critic and critic.learns_alone(step)):
            self.kl_coefficient = adapted(used, metrics["kl"], kl.target)
        return {"kl_coefficient": used}

    @property
    def present_algorithm(self) -> Algorithm:
        """The algorithm with the present weight of its KL penalty."""
        if self.kl_coefficient is None:
            return self.algorithm
        assert isinstance(self.algorithm, PolicyGradient), "sft and dpo have no KL penalty"
        return self.algorithm.with_kl_coefficient(self.kl_coefficient)

    def must_end(self) -> bool:
        """Return whether the session ends after this step, with a checkpoint."""
        return self.leaving or self.stop.is_set()

    def owes_evaluation(self, done: int) -> bool:
        """Return whether to evaluate step `done` before training.

        True before the first step, and if an earlier run did not finish that evaluation. If that is
        unknown, the evaluation is repeated after the last step, and where the best checkpoint is chosen by it.
        """
        if self.must_end():
            return False
        if self.evaluated is not None:
            return done == 0 or not self.evaluated
        return done == 0 or done >= self.total_steps or self._chooses_best(done)

    async def apply_steering(self) -> None:
        """Apply what has changed for the job since the previous step."""
        if self.steer is None:
            return
        steering = await self.steer(self.total_steps, self.must_end())
        for warning in steering.warnings:
            self.progress.warn_once(warning, warning)
        self.total_steps = steering.total_steps
        self.leaving = self.leaving or steering.leaving

    def is_chosen_by(self, name: str) -> bool:
        """Return whether the best checkpoint is chosen by the evaluation of this name."""
        chosen = self.spec.checkpoint.keep_best
        return chosen is not None and name == (chosen.eval or "")

    def owes_checkpoint(self, step: int) -> bool:
        """Return whether a step has a checkpoint: every so many steps, at the end, and where the best is chosen."""
        due = is_due(step, self.spec.checkpoint.every, self.total_steps)
        return due or self.must_end() or self._chooses_best(step)

    def _chooses_best(self, step: int) -> bool:
        """Return whether a step has the evaluation that the best checkpoint is chosen by."""
        return any(map(self.is_chosen_by, evaluations_due(self.spec.data, step, self.total_steps)))

    async def complete(self, step: int, found: Mapping[str, float]) -> None:
        """Add a step's evaluations, columns of metrics.jsonl, to its checkpoint. All cards show those of step 0."""
        self.results.setdefault(FIRST_RESULTS if step == 0 else STEP_RESULTS, {}).update(found)
        if step and step == self.published_step:
            by = best_by(self.spec)
            await self.workers.complete(step, self.results, found.get(by.metric) if by else None)

    async def publish(self, step: int) -> None:
        """Hand a checkpoint of this step to the uploader of the first worker."""
        state = self.curriculum.state if self.curriculum else None
        driver = DriverState(self.rollouts.position, self.kl_coefficient, state, self.rollouts.unfinished)
        await self.workers.publish(step, self.adapter_version, driver, self.results)
        self.published_step = step

    async def report_uploads(self) -> None:
        """Report checkpoints that have been published; raise if one cannot be."""
        if self._reported_step < self.published_step:
            self.report_checkpoints(await self.workers.uploads())
        await self._report_best()

    async def drain_uploads(self) -> None:
        """Wait until every checkpoint is published."""
        self.report_checkpoints(await self.workers.drain_uploads())
        await self._report_best()

    async def finish(self) -> None:
        """Record in the job's folder that all steps are made. Without that, the folder counts as used for longer."""
        try:
            await self.workers.finish()
        except LorarlError as error:
            self.progress.emit(Warned(f"the end of the training is not recorded in the store: {error}"))

    async def rescue_uploads(self, failure: Exception, seconds: float = RESCUE_SECONDS) -> None:
        """After a failure of the loop, publish what was handed over before, or keep it on the worker's disk.

        The failure itself matters more: what goes wrong here is at most a warning.
        """
        try:
            async with asyncio.timeout(2 * seconds):
                try:
                    self.report_checkpoints(await self.workers.drain_uploads(seconds))
                except StorageError:
                    # Those before the one that failed, or whose evaluation could not be recorded.
                    self.report_checkpoints(await self.workers.published())
                    raise
        except (LorarlError, TimeoutError) as error:
            if not isinstance(error, WorkerError) and str(error) != str(failure):
                why = str(error) or "the workers did not answer in time"
                self.progress.emit(Warned(f"the last checkpoints could not be published after the failure: {why}"))

    def report_checkpoints(self, published: Sequence[Published]) -> None:
        """Report checkpoints that were not reported yet."""
        for done in published:
            for warning in done.warnings:
                self.progress.warn_once(warning, warning)
            if done.step > self._reported_step:
                self._reported_step, self.adapter_uri = done.step, done.adapter_uri
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
        """Report the best checkpoint if it is another one than before."""
        if self.spec.checkpoint.keep_best is None:
            return
        best = await self.workers.best()
        if best is not None and best != self.best:
            self.best = best
            uri = f"{self._job_uri}/{best.path}/{ADAPTER}" if self._job_uri else best.path
            self.progress.emit(BestFound(step=best.step, uri=uri, metric=best.metric, value=best.value))

    @property
    def _job_uri(self) -> str | None:
        """The job's folder in the store, above a published adapter's."""
        return self.adapter_uri and self.adapter_uri.rsplit("/", 2)[0]

    async def report_startup(self) -> None:
        """Report where the time went up to the first update."""
        spans = with_worker(self.clock.parts, await self.workers.startup_spans())
        ended = {span.name: span.end for span in spans}
        self.progress.emit(
            StartedUp(
                parts=tuple(spans),
                first_token=ended.get("first generation/first token"),
                first_update=ended["first update"],
            )
        )


def starting_kl_coefficient(spec: LoRARLJobSpec, resumed: Resumed) -> float | None:
    """Return the weight of a KL penalty that keeps a divergence, where the run begins; None where it is fixed."""
    if spec.algorithm.kl is None or spec.algorithm.kl.target is None:
        return None
    return resumed.driver.kl_coefficient or spec.algorithm.effective_kl_coefficient


def starting_curriculum(spec: LoRARLJobSpec, rows: Sequence[EncodedRow], resumed: Resumed) -> Curriculum | None:
    """Return what decides which of the rows take their turn, where the run begins; None if all do."""
    if (chosen := spec.data.curriculum) is None:
        return None
    keys = [row_key(row.prompt_ids, row.row.answer) for row in rows]
    return Curriculum(chosen, spec.trainer.seed, keys, resumed.driver.curriculum)
