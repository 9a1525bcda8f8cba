"""The loop, top to bottom: prompts -> rollouts -> rewards -> advantages -> update -> adapter sync -> checkpoint -> progress.

Shape suffixes: P prompts of a step, G completions a prompt, S = P * G samples, T tokens of a sample.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lorarl_trainer.algorithms import Algorithm
from lorarl_trainer.guards import require_agreement, require_finite_gradient
from lorarl_trainer.progress import EvalDone, Sampled, StepDone
from lorarl_trainer.rollout.collect import roll_out, some_of
from lorarl_trainer.samples.types import Sample, Samples, UpdateRequest, UpdateResult
from lorarl_trainer.schedule import is_due, learning_rate, seed_of
from lorarl_trainer.session import Session, StepClock
from lorarl_trainer.sft import imitate, imitation_loss


async def train(session: Session, done: int) -> int:
    """Train from the step after `done` to the job's last, or until a stop is asked for; return the last step made.

    Raises:
        LorarlError: what a user can act on; the newest published checkpoint is whole.
    """
    checkpoint = session.spec.checkpoint
    session.adapter_version, _ = await session.workers.sync()
    # Before training; and what a run that ended within an evaluation still owes. Where nobody knows, the last one alone.
    owed = done == 0 or session.evaluated is False or (session.evaluated is None and done >= session.total_steps)
    if owed and not session.stop.is_set():
        await evaluate_if_due(session, done)
    step = done
    await session.look_around()
    while step < session.total_steps and not session.stop.is_set():
        step += 1
        clock = StepClock()
        event = await (
            reinforce(session, session.algorithm, step, clock) if session.algorithm else imitate(session, step, clock)
        )
        await session.look_around()
        # Published and told before the evaluation, which may fail, or be cut short.
        if is_due(step, checkpoint.every, session.total_steps) or session.stop.is_set():
            with clock.phase("checkpoint"):
                await session.publish(step)
        seconds = clock.seconds()
        speed = event.tokens / sum(seconds.values())
        session.progress.emit(replace(event, total_steps=session.total_steps, seconds=seconds, tokens_per_second=speed))
        if not session.stop.is_set() or step >= session.total_steps:  # else there is no time for it
            await evaluate_if_due(session, step)
        await session.look_at_uploads()
        if step == done + 1:
            await session.tell_of_start()
    if step > done and session.published_step != step:
        await session.publish(step)
    return step


async def reinforce(session: Session, algorithm: Algorithm, step: int, clock: StepClock) -> StepDone:
    """Make one step of reinforcement learning."""
    spec, workers = session.spec, session.workers

    # Prompts: the next ones of an order that the seed alone decides.
    rows_P = session.next_rows(spec.rollout.prompts_per_step)
    rows_S = [row for row in rows_P for _ in range(algorithm.group_size)]

    # Rollouts and rewards: G completions a prompt, each scored while others are still being generated. A seed a sample: the same on any
    # number of engines. A reward is NaN where a completion could not be scored; it then takes no part.
    seeds_S = [seed_of(spec.trainer.seed, "sample", step, index) for index in range(len(rows_S))]
    rollouts = await roll_out(session, rows_S, seeds_S)
    clock.add_all(rollouts.seconds)
    completions_S, rewards_S = rollouts.completions, rollouts.rewards
    session.progress.emit(Sampled(step=step, samples=some_of(rollouts, rows_S, algorithm.group_size)))

    # Advantages: the algorithm's only word.
    advantages_S = algorithm.advantages(rewards_S.reshape(-1, algorithm.group_size)).reshape(-1)
    samples_S = [
        Sample(
            np.concatenate([np.asarray(row.prompt_ids), completion.tokens]),
            len(row.prompt_ids),
            float(advantage),
            completion.logprobs,
        )
        for row, completion, advantage in zip(rows_S, completions_S, advantages_S, strict=True)
    ]
    scored = [not np.isnan(reward) for reward in rewards_S]

    # Updates: one, or several on equal shares of the prompts; only the first sees the very policy that generated.
    results: list[UpdateResult] = []
    share = len(samples_S) // algorithm.updates_per_step
    for number in range(algorithm.updates_per_step):
        part = slice(number * share, (number + 1) * share)
        samples = Samples(sample for sample, keep in zip(samples_S[part], scored[part], strict=True) if keep)
        if not samples:
            continue
        request = UpdateRequest(
            samples=samples,
            loss=algorithm.loss,
            total_tokens=max(1, sum(sample.response_length for sample in samples)),
            temperature=spec.rollout.temperature,
            learning_rate=learning_rate(spec.trainer, step),
            seed=seed_of(spec.trainer.seed, "dropout", step, number),
            on_policy=not results,
            tolerance=spec.logprob_tolerance,
        )
        result = await workers.update(request)
        clock.add_all(result.seconds)
        require_agreement(result, step, request.tolerance)
        require_finite_gradient(result, step)
        results.append(result)

    # Adapter sync: from here on vLLM generates with the new version.
    session.adapter_version, seconds = await workers.sync()
    clock.add("sync", seconds)

    lengths_S = [len(completion.tokens) for completion in completions_S]
    return StepDone(
        step=step,
        total_steps=session.total_steps,
        adapter_version=session.adapter_version,
        loss=float(np.mean([result.loss for result in results])),
        grad_norm=float(np.mean([result.grad_norm for result in results])),
        learning_rate=learning_rate(spec.trainer, step),
        reward_mean=float(np.nanmean(rewards_S)),
        reward_std=float(np.nanstd(rewards_S)),
        reward_failures=rollouts.failures,
        kl=results[0].base_kl,
        mean_abs_logprob_diff=results[0].logprob_difference,
        rollout_kl=results[0].rollout_kl,
        entropy=results[0].entropy,
        clipped_share=float(np.mean([result.clipped for result in results])),
        response_tokens_mean=float(np.mean(lengths_S)),
        truncated_share=float(np.mean([not completion.finished for completion in completions_S])),
        tokens=sum(len(sample.tokens) for sample in samples_S),
        tokens_per_second=0.0,  # `train` knows, once the step is over
        seconds={},
    )


async def evaluate_if_due(session: Session, step: int) -> None:
    """Evaluate after step 0, every so many and the last, where there are held-out rows."""
    held_out = session.spec.data.eval
    if held_out and session.eval_rows and is_due(step, held_out.every, session.total_steps):
        session.progress.emit(await evaluate(session, step))


async def evaluate(session: Session, step: int) -> EvalDone:
    """Evaluate the held-out rows: the mean reward of greedy completions, or the loss a token for sft."""
    clock = StepClock()
    rows = session.eval_rows
    if session.scorer is None:
        return EvalDone(
            step=step, rows=len(rows), loss=await imitation_loss(session.workers, rows), seconds=clock.elapsed()
        )
    rollouts = await roll_out(session, rows, seeds=None)
    session.progress.emit(Sampled(step=step, samples=some_of(rollouts, rows), evaluation=True))
    return EvalDone(step=step, rows=len(rows), score=float(np.nanmean(rollouts.rewards)), seconds=clock.elapsed())
