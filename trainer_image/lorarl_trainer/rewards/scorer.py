"""Makes the scorers of a job: of `spec.reward` or `spec.rewards`, and of `spec.data.evals`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lorarl_api.v1alpha1 import EvalSpec, LoRARLJobSpec, RewardSpec
from lorarl_trainer.rewards.builtin import BuiltinScorer, make_compare
from lorarl_trainer.rewards.output import Output
from lorarl_trainer.rewards.pool import PoolScorer, usual_processes
from lorarl_trainer.rewards.scores import Scorer
from lorarl_trainer.rewards.weighted import Part, WeightedScorer


@dataclass(frozen=True)
class Scorers:
    """All that a job's completions are scored with.

    Attributes:
        reward: that of the reward or rewards; None for sft.
        evals: those of the evaluations that have a reward of their own, by their names.
    """

    reward: Scorer | None
    evals: Mapping[str, Scorer]

    async def ready(self) -> None:
        """Wait until each is ready; see `Scorer.ready` for the errors."""
        await asyncio.gather(*(scorer.ready() for scorer in self._all))

    @property
    def _all(self) -> list[Scorer]:
        return [*([self.reward] if self.reward else []), *self.evals.values()]


@contextlib.contextmanager
def open_scorers(
    spec: LoRARLJobSpec, manifest_folder: Path, *, output: Output | None = None, eval_processes: int | None = None
) -> Iterator[Scorers]:
    """Make a job's scorers and start what they need; end it when the block ends.

    Args:
        spec: the job's.
        manifest_folder: where functions are searched after the Python path and the working directory.
        output: gets what functions print; None for this process's own output.
        eval_processes: number of processes of an evaluation's own function; None for one per usable core, at most 8.

    Raises:
        InputError: the pattern of a regex reward does not compile.
    """
    evals = make_eval_scorers(spec.data.evals, manifest_folder, processes=eval_processes, output=output)
    scorers = Scorers(make_job_scorer(spec, manifest_folder, output), evals)
    with contextlib.ExitStack() as stack:
        for scorer in scorers._all:
            stack.callback(scorer.close)
            scorer.warm_up()
        yield scorers


def make_job_scorer(spec: LoRARLJobSpec, manifest_folder: Path, output: Output | None = None) -> Scorer | None:
    """Make the scorer of a job; None if it has no reward.

    Several rewards share the usable cores.

    Args:
        spec: the job's.
        manifest_folder: where functions are searched after the Python path and the working directory.
        output: gets what functions print; None for this process's own output.

    Raises:
        InputError: the pattern of a regex reward does not compile.
    """
    if spec.reward is not None:
        return make_scorer(spec.reward, manifest_folder, output=output)
    if spec.rewards is None:
        return None
    pools = sum(_needs_processes(reward) for reward in spec.rewards)
    processes = max(1, usual_processes() // max(1, pools))
    parts = [
        Part(
            path,
            reward.name,
            reward.weight,
            make_scorer(reward, manifest_folder, path, processes=processes, output=output),
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
) -> Scorer:
    """Make the scorer of one reward.

    Args:
        spec: the reward.
        manifest_folder: where functions are searched after the Python path and the working directory.
        path: the reward's path in the manifest, for errors.
        processes: number of processes of a function and of math_verify; None for one per usable core, at most 8.
        output: gets what a function prints; None for this process's own output.

    Raises:
        InputError: the pattern of a regex reward does not compile.
    """
    if not _needs_processes(spec):
        return BuiltinScorer(make_compare(spec, path), f"{path}.type")
    return PoolScorer(
        spec.function or "lorarl_trainer.rewards.mathematics:score",
        timeout_seconds=spec.timeout_seconds,
        search_path=[Path.cwd(), manifest_folder.resolve()],
        field=f"{path}.function" if spec.function else f"{path}.type",
        processes=processes,
        output=output,
    )


def make_eval_scorers(
    evals: Sequence[EvalSpec], manifest_folder: Path, *, processes: int | None = None, output: Output | None = None
) -> dict[str, Scorer]:
    """Make the scorers of the evaluations that have a reward of their own, by their names; see `make_scorer`."""
    return {
        source.name: make_scorer(
            source.reward,
            manifest_folder,
            f"spec.data.evals[{number}].reward",
            processes=processes,
            output=output,
        )
        for number, source in enumerate(evals)
        if source.reward
    }


def needs_answers(spec: RewardSpec) -> bool:
    """Whether every row must have an answer. The built-in rewards compare with it; functions may not need it."""
    return spec.function is None


def _needs_processes(spec: RewardSpec) -> bool:
    return spec.function is not None or spec.type == "math_verify"
