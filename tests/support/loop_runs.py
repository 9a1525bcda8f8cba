"""Runs of the product's own loop on a worker in this process, with a reward that any model can learn."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lorarl_trainer.algorithms.registry import get_algorithm
from lorarl_trainer.checkpoint import Owner
from lorarl_trainer.checkpoint.identity import training_identity
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.data.rows import Row
from lorarl_trainer.data.stream import RowStream
from lorarl_trainer.from_data.dpo import Pairs
from lorarl_trainer.from_data.sft import Answers
from lorarl_trainer.loop import train
from lorarl_trainer.lora.targets import last_parts
from lorarl_trainer.progress import Event, Progress, StepDone
from lorarl_trainer.protocols.rollouts import Rollouts
from lorarl_trainer.protocols.workers import JobCheckpoints
from lorarl_trainer.rewards.scores import Outcome, ToScore
from lorarl_trainer.rollout.lockstep import Lockstep
from lorarl_trainer.rollout.partial import Partial
from lorarl_trainer.rollout.taught import InTheWorkers, Taught
from lorarl_trainer.session import RunCheckpoints, Session, starting_curriculum, starting_kl_coefficient
from lorarl_trainer.timing import StartClock
from support.in_process import Colocated, OneWorker


class CountsEvenTokens:
    """The share of even tokens in a completion: dense, deterministic, and no text needed."""

    field = "spec.reward"

    def warm_up(self) -> None: ...

    async def ready(self) -> None: ...

    async def score(self, samples: Sequence[ToScore]) -> list[Outcome]:
        tokens = [[int(token) for token in sample.completion.split()] for sample in samples]
        return [Outcome(float(np.mean([t % 2 == 0 for t in row]))) for row in tokens]

    def close(self) -> None: ...


class Collected:
    """A sink that keeps the events."""

    name = "collected"

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None: ...


def rows(count: int = 12, answer: Sequence[int] = (), prompt_length: int = 3) -> list[EncodedRow]:
    stream = np.random.default_rng(7)
    made = []
    for number in range(count):
        prompt = stream.integers(4, 60, size=prompt_length + number % 5).tolist()
        made.append(EncodedRow(Row(str(prompt), "", {}, number + 1), prompt, list(answer)))
    return made


def spelled(completions: Sequence[Any]) -> list[str]:
    return [" ".join(str(token) for token in completion) for completion in completions]


async def run_in_process(
    worker: Colocated,
    *,
    stop_after: int | None = None,
    train_rows: Sequence[EncodedRow] | None = None,
    after_step: Callable[[int], None] = lambda step: None,
    workers: OneWorker | None = None,
) -> list[StepDone]:
    """Train as `lorarl run` does, from the newest checkpoint if there is one; return the steps.

    `after_step` is called when a step is done. `workers` has the worker.
    """
    spec, sink = worker.spec, Collected()
    workers, stop = workers or OneWorker(worker.worker), asyncio.Event()
    identity = training_identity(spec, "fingerprint")
    job = worker.job
    await workers.open_checkpoints(
        JobCheckpoints(Owner(job.name, job.uid), identity, worker.out / "unpublished", worker.made_of)
    )
    resumed = await workers.resume()
    algorithm, learning = get_algorithm(spec.algorithm, spec.rollout.max_response_tokens), list(train_rows or rows())
    progress = Progress(direct=[sink, _StopAfter(stop_after, stop), _AfterStep(after_step)], queued=[])
    curriculum = starting_curriculum(spec, learning, resumed)
    stream = RowStream(learning, spec.trainer.seed, resumed.driver.position, None, curriculum)
    rollouts: Rollouts
    if spec.algorithm.type == "sft":
        rollouts = Answers(stream, {}, spec.rollout.prompts_per_step, workers)
    elif spec.algorithm.type == "dpo":
        rollouts = Pairs(stream, {}, spec.rollout.prompts_per_step, workers, algorithm.loss)
    elif spec.algorithm.type == "distillation":
        size, teacher = algorithm.group_size, InTheWorkers()
        rollouts = Taught(spec, stream, {}, size, workers, teacher, spelled, progress, spelled)
    else:
        scorer, chosen = CountsEvenTokens(), spec.rollout.partial
        own: dict[str, Any] = (
            {}
            if chosen is None
            else {
                "extra_prompts": chosen.extra_prompts,
                "tokens_per_round": spec.rollout.tokens_per_round,
                "resumed": resumed.driver.unfinished,
            }
        )
        rollouts = (Partial if own else Lockstep)(
            spec,
            stream,
            {},
            algorithm.group_size,
            workers,
            scorer,
            spelled,
            progress,
            spelled,
            max_refills=algorithm.max_refills,
            **own,
        )
    session = Session(
        spec=spec,
        workers=workers,
        algorithm=algorithm,
        rollouts=rollouts,
        checkpoints=RunCheckpoints(spec, workers, progress, step=resumed.step),
        progress=progress,
        stop=stop,
        clock=StartClock("driver", "process"),
        total_steps=spec.trainer.steps,
        families=last_parts(worker.built.modules),
        adapter_version=resumed.adapter_version or 1,
        kl_coefficient=starting_kl_coefficient(spec, resumed),
        curriculum=curriculum,
    )
    await train(session, resumed.step)
    await session.checkpoints.drain()
    return [event for event in sink.events if isinstance(event, StepDone)]


class _StopAfter:
    """Asks for a stop, as SIGTERM does, while the step after `step` is under way."""

    name = "stop"

    def __init__(self, step: int | None, stop: asyncio.Event) -> None:
        self.step, self.stop = step, stop

    def on_event(self, event: Event) -> None:
        if isinstance(event, StepDone) and event.step == self.step:
            self.stop.set()

    def close(self) -> None: ...


class _AfterStep:
    """Calls a function after each step."""

    name = "after step"

    def __init__(self, call: Callable[[int], None]) -> None:
        self.call = call

    def on_event(self, event: Event) -> None:
        if isinstance(event, StepDone):
            self.call(event.step)

    def close(self) -> None: ...


def adapter_digest(out: Path, job: str = "tiny") -> str:
    """SHA-256 of the newest published adapter's weights."""
    newest = max((out / "checkpoints" / job).glob("iter_*"))
    return hashlib.sha256((newest / "lora_adapter" / "adapter_model.safetensors").read_bytes()).hexdigest()
