"""The loop, top to bottom: samples -> advantages -> updates -> adapter sync -> checkpoint -> progress -> evaluation.

Reinforcement learning and supervised fine-tuning differ in `rollouts` and `algorithm`, not here.
Shape suffixes: P prompts of a step, G completions or episodes per prompt, S samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from lorarl_trainer.algorithms.groups import unused_signal
from lorarl_trainer.credit.advantages import scored_episodes, with_advantages
from lorarl_trainer.credit.critic import critic_update, policy_learning_rate
from lorarl_trainer.credit.reference import with_old_logprobs
from lorarl_trainer.guards.nonfinite import count_withheld
from lorarl_trainer.guards.staleness import require_staleness
from lorarl_trainer.guards.start import check_engine
from lorarl_trainer.guards.updates import require_agreement
from lorarl_trainer.progress import Sampled, ScoredSample, StepDone, Warned, results_of
from lorarl_trainer.protocols.rollouts import StepBatch
from lorarl_trainer.samples.arrays import Floats
from lorarl_trainer.samples.requests import UpdateRequest
from lorarl_trainer.samples.wire import Samples
from lorarl_trainer.schedule import evaluations_due, seed_of
from lorarl_trainer.session import STEP_RESULTS, Session, StepClock

SHOWN_RESULTS = ("reward_mean", "loss")
"""Metrics of a step that its checkpoint's model card shows."""


async def train(session: Session, done: int) -> int:
    """Train from the step after `done` to the job's last, or until the session must end; return the last step made.

    Raises:
        LorarlError: what a user can act on; the newest published checkpoint is whole.
    """
    # Replacement workers run what has passed the check; every update is still compared with those limits.
    known = session.limits is not None
    if not known:
        session.limits = await check_engine(session)
    await session.workers.sync(session.adapter_version, verify=known)
    if session.owes_evaluation(done):
        await evaluate_if_due(session, done)
    step = done
    await session.apply_steering()
    while step < session.total_steps and not session.must_end():
        step += 1
        session.finishes = "finishing this step, then publishing a checkpoint"
        clock = StepClock()
        event = await make_step(session, step, clock)
        session.checkpoints.results[STEP_RESULTS] = {
            name: event.metrics[name] for name in SHOWN_RESULTS if name in event.metrics
        }
        await session.apply_steering()
        # Publish and report before the evaluation, which may fail or be cut short.
        if session.owes_checkpoint(step):
            with clock.phase("checkpoint"):
                await session.publish(step)
        session.progress.emit(clock.finish(replace(event, total_steps=session.total_steps)))
        # A run that must end has no time to evaluate.
        due = evaluations_due(session.spec.data, step, session.total_steps)
        if due and (not session.must_end() or step >= session.total_steps):
            await session.checkpoints.report_published()  # first, since the evaluation takes a while
            await evaluate_if_due(session, step)
        await session.checkpoints.report_published()
        if step == done + 1:
            await session.report_startup()
    if session.finishes:
        session.finishes = "all steps are made; finishing the upload of the checkpoints"
    if step > done and session.checkpoints.step != step:
        await session.publish(step)
    return step


async def make_step(session: Session, step: int, clock: StepClock) -> StepDone:
    """Make one step."""
    # Samples: by the newest adapter, each completion scored while others are still being generated; or from the data.
    # With rollout.maxStaleness, they may be by adapters of a few steps before.
    batch = await session.rollouts.next(step, session.adapter_version)
    clock.add_all(batch.seconds)
    staleness = require_staleness(batch.samples_S, session.adapter_version, session.spec.rollout.oldest_samples)

    # Advantages: of each sample, compared with its group, or of each token. Nothing after this looks at rewards.
    algorithm = session.present_algorithm
    with clock.phase("forward_backward"):
        batch, advantages_S, advantage_metrics = await with_advantages(session.workers, algorithm, batch)
        if unused := unused_signal(batch.rewards_P_G, batch.of_episodes(advantages_S), algorithm.no_advantages):
            session.progress.warn_once("unused signal", f"step {step}: {unused}")
        batch = await with_old_logprobs(session.workers, algorithm, batch)
    if session.keep:
        session.keep(step, batch, advantages_S, session.adapter_version, session.rollouts.position, session.limits)
    if batch.shown:
        session.progress.emit(Sampled(step=step, samples=as_shown(batch.shown, batch.of_episodes(advantages_S))))

    # Updates: one, or several on equal shares of the prompts. Only the first sees the very policy that generated.
    metrics: dict[str, list[float]] = {}
    withheld = 0
    for request in update_requests(session, batch, advantages_S, step):
        result = await session.workers.update(request)
        clock.add_all(result.seconds)
        for warning in result.warnings:
            session.progress.warn_once(warning, warning)
        require_agreement(result, step)
        session.withheld_in_a_row = count_withheld(result, step, session.withheld_in_a_row)
        withheld += session.withheld_in_a_row > 0
        for name, value in result.metrics.items():
            metrics.setdefault(name, []).append(value)

    if withheld:
        session.progress.emit(
            Warned(f"step {step}: {withheld} update(s) withheld, because loss or gradient was not a finite number")
        )

    # Adapter sync: from here on the engine generates with the new version.
    session.adapter_version += 1
    clock.add("sync", await session.workers.sync(session.adapter_version))
    found = advantage_metrics | {name: float(np.mean(values)) for name, values in metrics.items()}
    return StepDone(
        step=step,
        total_steps=session.total_steps,
        adapter_version=session.adapter_version,
        metrics={
            "learning_rate": policy_learning_rate(algorithm.critic, session.spec.trainer, step, session.total_steps),
            **batch.metrics,
            **staleness,
            **found,
            **session.adapt_kl(step, found),
            **({"withheld_updates": float(withheld)} if withheld else {}),
        },
        tokens=sum(len(sample.tokens) for sample in batch.samples_S),
        groups=len(batch.rewards_P_G),
        completions=batch.rewards_P_G.size,
    )


def update_requests(
    session: Session, batch: StepBatch, advantages_S: Sequence[float | Floats], step: int
) -> Iterator[UpdateRequest]:
    """Yield the updates of a step, in order."""
    trainer, algorithm = session.spec.trainer, session.present_algorithm
    share = batch.rewards_P_G.size // algorithm.updates_per_step
    scored = scored_episodes(batch, advantages_S)
    first = True
    for number in range(algorithm.updates_per_step):
        episodes = [scored[index] for index in range(number * share, (number + 1) * share) if index in scored]
        if not episodes:
            continue
        samples = [sample for episode in episodes for sample in episode]
        yield UpdateRequest(
            samples=Samples(samples),
            loss=algorithm.loss,
            total_tokens=max(1, sum(sample.trained_length for sample in samples)),
            temperature=batch.temperature,
            learning_rate=policy_learning_rate(algorithm.critic, trainer, step, session.total_steps),
            seed=seed_of(trainer.seed, "dropout", step, number),
            on_policy=batch.on_policy and first,
            limits=session.limits or batch.limits,
            total_samples=len(episodes),
            critic=critic_update(algorithm.critic, trainer, step, session.total_steps),
        )
        first = False


def as_shown(shown: Sequence[ScoredSample], advantages: Sequence[float | Floats]) -> tuple[ScoredSample, ...]:
    """Return what is shown of a step's first episodes with the mean of their advantages; none without a reward."""
    return tuple(
        sample if sample.reward is None else replace(sample, advantage=float(np.mean(advantage)))
        for sample, advantage in zip(shown, advantages, strict=False)
    )


async def evaluate_if_due(session: Session, step: int) -> None:
    """Make the evaluations that are due: after step 0, every so many steps, and after the last."""
    found: dict[str, float] = {}
    for name in evaluations_due(session.spec.data, step, session.total_steps):
        event = await session.rollouts.evaluate(name, step, session.adapter_version)
        session.progress.emit(event)
        found |= results_of(event)
    if found:
        await session.checkpoints.complete(step, found)
