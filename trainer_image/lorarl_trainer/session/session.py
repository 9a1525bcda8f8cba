"""A run: its parts, and where it is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.algorithms import Algorithm
from lorarl_trainer.algorithms.adaptive_kl import adapted
from lorarl_trainer.algorithms.policy_gradient import PolicyGradient
from lorarl_trainer.data.curriculum import Curriculum, row_key
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.progress import Progress, StartedUp
from lorarl_trainer.protocols.rollouts import KeepBatch, Rollouts, RunsAhead
from lorarl_trainer.protocols.steering import Steer
from lorarl_trainer.protocols.workers import DriverState, Resumed, Workers
from lorarl_trainer.samples.agreement import AgreementLimits
from lorarl_trainer.schedule import evaluations_due, is_due
from lorarl_trainer.servers.pool import Servers
from lorarl_trainer.session.checkpoints import RunCheckpoints
from lorarl_trainer.timing import StartClock, with_worker


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
        evaluated: whether the step that the run resumes from was evaluated; None if that is not known.
        steer: says once per step what has changed for the job; None if nothing can.
        leaving: a worker's machine is about to be removed, so the workers end after a checkpoint.
        grows: there are machines for more workers, so these end once a checkpoint is due anyway.
        growing: that checkpoint is published, and more workers start.
        asked: the next checkpoint is awaited by a drain, so that it is owed now and reported before the next step.
        finishes: what the run finishes first if it is asked to end now; None if it ends at once, with nothing to save.
        withheld_in_a_row: updates that were withheld since the last one that was made, see `guards.nonfinite`.
        keep: keeps each step's samples; None for nothing.
        kl_coefficient: the present weight of a KL penalty that keeps a divergence; None where it is fixed.
        curriculum: what decides which rows take their turn, the same object as in the rollouts' stream of rows.
        servers: what generates in the place of the workers' engines; None if those do.
        ahead: the same object as `rollouts`, where it makes samples of later steps; None if it does not.
    """

    spec: LoRARLJobSpec
    workers: Workers
    algorithm: Algorithm
    rollouts: Rollouts
    checkpoints: RunCheckpoints
    progress: Progress
    stop: asyncio.Event
    clock: StartClock
    total_steps: int
    families: Sequence[str] = ()
    computes: tuple[str, tuple[int, int]] | None = None
    adapter_version: int = 1
    limits: AgreementLimits | None = None
    evaluated: bool | None = None
    steer: Steer | None = None
    leaving: bool = False
    grows: bool = False
    growing: bool = False
    asked: bool = False
    finishes: str | None = None
    withheld_in_a_row: int = 0
    keep: KeepBatch | None = None
    kl_coefficient: float | None = None
    curriculum: Curriculum | None = None
    servers: Servers | None = None
    ahead: RunsAhead | None = None

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
        return self.leaving or self.growing or self.stop.is_set()

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
        if self.ahead is not None:
            self.ahead.last = self.total_steps
        self.leaving = self.leaving or steering.leaving
        self.asked = self.asked or steering.asked
        self.grows = steering.grows

    def owes_checkpoint(self, step: int) -> bool:
        """Return whether a step has a checkpoint.

        Every so many steps or seconds, at the end, where the best is chosen, and if a drain waits for one.
        """
        due = is_due(step, self.spec.checkpoint.every, self.total_steps) or self.checkpoints.is_overdue()
        return due or self.must_end() or self.asked or self._chooses_best(step)

    def _chooses_best(self, step: int) -> bool:
        """Return whether a step has the evaluation that the best checkpoint is chosen by."""
        chosen = self.spec.checkpoint.keep_best
        return chosen is not None and (chosen.eval or "") in evaluations_due(self.spec.data, step, self.total_steps)

    async def publish(self, step: int) -> None:
        """Publish a checkpoint of this step, after which more workers start if there is room for them."""
        state = self.curriculum.state if self.curriculum else None
        driver = DriverState(self.rollouts.position, self.kl_coefficient, state, self.rollouts.unfinished)
        await self.checkpoints.publish(step, self.adapter_version, driver)
        # After a checkpoint that a drain asked for, a machine goes: more workers would end as soon as they have begun.
        self.growing = self.grows and not self.asked and step < self.total_steps
        if self.asked:
            await self.checkpoints.await_published()
            self.asked = False

    async def stop_ahead(self) -> None:
        """End what is being made for later steps."""
        if self.ahead is not None:
            await self.ahead.stop()

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
