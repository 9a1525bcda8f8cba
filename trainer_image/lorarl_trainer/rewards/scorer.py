"""Makes the scorers of a job: of `spec.reward` or `spec.rewards`, and of `spec.data.evals`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lorarl_api.v1alpha1 import EnvironmentSpec, EvalSpec, LoRARLJobSpec, RewardSpec
from lorarl_trainer.data.reasoning_gym import require_task
from lorarl_trainer.data.rows import Row
from lorarl_trainer.errors import InputError
from lorarl_trainer.rewards.builtin import BuiltinScorer, Measure, make_measure
from lorarl_trainer.rewards.code.scorer import CodeScorer, check_row
from lorarl_trainer.rewards.environment.environment import Environment
from lorarl_trainer.rewards.environment.playing import Plays
from lorarl_trainer.rewards.output import Output
from lorarl_trainer.rewards.penalties import length_penalty, repetition_penalty
from lorarl_trainer.rewards.pool import PoolScorer, usual_processes
from lorarl_trainer.rewards.process import START_SECONDS, CodeFolders
from lorarl_trainer.rewards.scores import Judge, Scorer
from lorarl_trainer.rewards.server.apis import instruction_of
from lorarl_trainer.rewards.server.scorer import ServerScorer
from lorarl_trainer.rewards.server.teacher import Teacher
from lorarl_trainer.rewards.source import NO_SOURCES, Sources
from lorarl_trainer.rewards.weighted import Part, WeightedScorer

_COMPILED_ROWS = 1000
"""Rows whose assertions are compiled before a run. A later row without valid ones is a separate failure."""


@dataclass(frozen=True)
class Scorers:
    """All that a job's completions are scored with.

    Attributes:
        reward: that of the reward or rewards; None for sft, dpo and distillation, and with an environment of a class.
        evals: those of the evaluations that have their own reward, by their names.
        teacher: a server that scores tokens; None without one.
        environment: plays episodes, with tools beside a reward, or in place of one; None without one.
        patience: seconds that `ready` waits; None leaves that to each.
    """

    reward: Scorer | None
    evals: Mapping[str, Scorer]
    teacher: Teacher | None = None
    environment: Plays | None = None
    patience: float | None = None

    async def ready(self) -> None:
        """Wait until each is ready; see `Scorer.ready` for the errors.

        Raises:
            InputError: also if one is not ready in time.
        """
        if not (tasks := {asyncio.ensure_future(scorer.ready()): scorer for scorer in self._all}):
            return
        try:
            done, waiting = await asyncio.wait(tasks, timeout=self.patience, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
        for task in done:
            task.result()
        for task in waiting:
            raise InputError(
                tasks[task].field,
                f"a module that takes more than {self.patience:g} s to import",
                "a fast import",
                f"Move slow work out of the module's top level. A run waits up to {START_SECONDS:g} s.",
            )

    @property
    def _all(self) -> list[Judge]:
        of_job: tuple[Judge | None, ...] = self.reward, self.teacher, self.environment
        return [*filter(None, of_job), *self.evals.values()]


@contextlib.contextmanager
def open_scorers(
    spec: LoRARLJobSpec,
    manifest_folder: Path,
    *,
    output: Output | None = None,
    eval_processes: int | None = None,
    sources: Sources = NO_SOURCES,
    environment_of: Callable[[EnvironmentSpec, CodeFolders, Output | None], Plays] = Environment,
) -> Iterator[Scorers]:
    """Make a job's scorers and start what they need; end it when the block ends.

    Args:
        spec: the job's.
        manifest_folder: where functions are searched after the Python path and the working directory.
        output: gets what functions print; None for this process's own output.
        eval_processes: number of processes of an evaluation's own function; None for one per usable core, at most 8.
        sources: the folders of `reward.source`.
        environment_of: makes the environment, here by default.

    Raises:
        InputError: the pattern of a regex reward does not compile.
    """
    evals = make_eval_scorers(
        spec.data.evals, manifest_folder, processes=eval_processes, output=output, sources=sources
    )
    distillation = spec.algorithm.distillation
    server = distillation and distillation.server
    teacher = Teacher(server, field="spec.algorithm.distillation.server") if server else None
    environment = None
    if spec.environment is not None:
        code = _code_folders(spec.environment, manifest_folder, sources)
        environment = environment_of(spec.environment, code, output)
    scorers = Scorers(make_job_scorer(spec, manifest_folder, output, sources), evals, teacher, environment)
    with contextlib.ExitStack() as stack:
        for scorer in scorers._all:
            stack.callback(scorer.close)
            scorer.warm_up()
        yield scorers


def make_job_scorer(
    spec: LoRARLJobSpec, manifest_folder: Path, output: Output | None = None, sources: Sources = NO_SOURCES
) -> Scorer | None:
    """Make the scorer of a job; None if it has no reward.

    Several rewards share the usable cores.

    `manifest_folder`: where functions are searched after the Python path and the working directory. `output`: gets what
    functions print; None for this process's own output.

    Raises:
        InputError: the pattern of a regex reward does not compile.
    """
    if spec.reward is not None:
        return make_scorer(spec.reward, manifest_folder, output=output, sources=sources)
    if spec.rewards is None:
        return None
    pools = sum(_needs_processes(reward) for reward in spec.rewards)
    processes = max(1, usual_processes() // max(1, pools))
    parts = [
        Part(
            path,
            reward.name,
            reward.weight,
            make_scorer(reward, manifest_folder, path, processes=processes, output=output, sources=sources),
        )
        for path, reward in zip(spec.rewards_by_path, spec.rewards, strict=True)
    ]
    return WeightedScorer(parts)


def make_scorer(
    spec: RewardSpec,
    manifest_folder: Path,
    path: str = "spec.reward",
    *,
    processes: int | None = None,
    output: Output | None = None,
    sources: Sources = NO_SOURCES,
) -> Scorer:
    """Make the scorer of one reward.

    Args:
        spec: the reward.
        manifest_folder: where functions are searched after the Python path and the working directory.
        path: the reward's path in the manifest, for errors.
        processes: number of processes of a function and of math_verify; None for one per usable core, at most 8.
        output: gets what a function prints; None for this process's own output.
        sources: the folders of `reward.source`.

    Raises:
        InputError: the pattern of a regex reward does not compile.
    """
    if spec.code is not None:
        return CodeScorer(
            spec.code,
            timeout_seconds=spec.timeout_seconds,
            field=f"{path}.code",
            processes=processes or usual_processes(),
        )
    if spec.server is not None:
        return ServerScorer(spec.server, timeout_seconds=spec.timeout_seconds, field=f"{path}.server")
    if not _needs_processes(spec):
        return BuiltinScorer(_measure(spec, path), f"{path}.{'type' if spec.type else spec.kind}")
    task = spec.reasoning_gym
    own = f"lorarl_trainer.rewards.reasoning_gym:{task}" if task else "lorarl_trainer.rewards.mathematics:score"
    field = f"{path}.{'function' if spec.function else 'reasoningGym' if task else 'type'}"
    return PoolScorer(
        spec.function or own,
        timeout_seconds=spec.timeout_seconds,
        code=_code_folders(spec, manifest_folder, sources),
        field=field,
        processes=processes,
        output=output,
        check=partial(require_task, task, field) if task else None,
    )


def _code_folders(spec: RewardSpec | EnvironmentSpec, manifest_folder: Path, sources: Sources) -> CodeFolders:
    if spec.source and (copy := sources.get(spec.source)):
        return CodeFolders((str(copy),), str(spec.source))
    return CodeFolders(tuple(dict.fromkeys([str(Path.cwd()), str(manifest_folder.resolve())])))


def make_eval_scorers(
    evals: Sequence[EvalSpec],
    manifest_folder: Path,
    *,
    processes: int | None = None,
    output: Output | None = None,
    sources: Sources = NO_SOURCES,
) -> dict[str, Scorer]:
    """Make the scorers of the evaluations that have their own reward, by their names; see `make_scorer`."""
    return {
        source.name: make_scorer(
            source.reward,
            manifest_folder,
            f"spec.data.evals[{number}].reward",
            processes=processes,
            output=output,
            sources=sources,
        )
        for number, source in enumerate(evals)
        if source.reward
    }


def needs_answers(spec: RewardSpec) -> bool:
    """Whether every row must have an answer. The built-in comparisons need it; functions may not."""
    return spec.type not in (None, "format")


def shows_answers(spec: RewardSpec) -> bool:
    """Whether a judge is shown the answers of the rows that have one."""
    return spec.server is not None and spec.server.api == "chat" and "{answer}" in instruction_of(spec.server)


def check_rows(rewards: Mapping[str, RewardSpec], rows: Sequence[Row]) -> None:
    """Refuse rows that lack what the rewards need beside an answer.

    Raises:
        InputError: a row has no tests that run for its programs, or is none of reasoning-gym's.
    """
    for path, reward in rewards.items():
        for index, row in enumerate(rows):
            if reward.code is not None:
                compiled = index < _COMPILED_ROWS
                check_row(reward.code, row.raw, row.number, f"{path}.code", compiled=compiled)
            if reward.reasoning_gym is not None and not row.raw.get("metadata"):
                raise InputError(
                    f"{path}.reasoningGym",
                    f"{reward.reasoning_gym}, but no metadata in row {row.number}",
                    "rows of the task, with the columns answer and metadata",
                    "Generate them: data.train.reasoningGym with the task.",
                )


def _measure(spec: RewardSpec, path: str) -> Measure:
    if spec.length is not None:
        return length_penalty(spec.length.free_tokens, spec.length.max_tokens)
    if spec.repetition is not None:
        return repetition_penalty(spec.repetition.words)
    return make_measure(spec, path)


def _needs_processes(spec: RewardSpec) -> bool:
    return any((spec.function, spec.code, spec.reasoning_gym)) or spec.type == "math_verify"
