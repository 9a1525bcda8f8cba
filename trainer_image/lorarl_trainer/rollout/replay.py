"""Rollouts that were dumped before, in place of an engine and a reward."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lorarl_trainer.errors import InputError
from lorarl_trainer.progress import EvalDone
from lorarl_trainer.protocols.rollouts import StepBatch
from lorarl_trainer.rollout.dump import REPLAY, dumped_steps, read_step


@dataclass
class Replay:
    """The steps of a folder, in the order in which the loop asks for them.

    Attributes:
        position: rows taken so far, as in the run that made them.
        group_size: completions per prompt that the algorithm wants.
    """

    folder: Path
    position: int
    group_size: int

    @property
    def unfinished(self) -> Sequence[int]:
        return ()

    async def next(self, step: int, adapter_version: int) -> StepBatch:
        """Return the samples of a step.

        Raises:
            InputError: the folder has no such step, or its groups are of another size.
        """
        there = dumped_steps(self.folder)
        if step not in there:
            hint = (
                f"Copy the checkpoint of step {there[0] - 1} to where the job looks for its own, or dump from step 1."
                if step < there[0]
                else f"Make as many steps as there are: --set spec.trainer.steps={there[-1]}."
            )
            raise InputError(REPLAY, f"{self.folder} without step {step}", f"steps {there[0]} to {there[-1]}", hint)
        batch, described = await asyncio.to_thread(read_step, self.folder, step)
        if (found := batch.rewards_P_G.shape[1]) != self.group_size:
            hint = f"Set spec.algorithm.groupSize: {found}."
            raise InputError(REPLAY, f"groups of {found} in step {step}", f"groups of {self.group_size}", hint)
        self.position = described["position"]
        return batch

    def probe_prompts(self, count: int) -> Sequence[Sequence[int]]:
        """Return none: there is no engine to check."""
        return []

    async def evaluate(self, name: str, step: int, adapter_version: int) -> EvalDone:
        """Make no evaluation: `launch.replay` leaves them out."""
        raise AssertionError("a replay has no evaluations")


def require_steps(folder: Path, job: str, checkpoints: str, steps: int) -> None:
    """Check that a folder has what a job replays, before anything starts.

    Raises:
        InputError: steps are missing, or the job would write into the checkpoints of the one that was dumped.
    """
    there = dumped_steps(folder)
    if missing := sorted(set(range(there[0], steps + 1)) - set(there)):
        hint = f"Make as many steps as there are: --set spec.trainer.steps={missing[0] - 1}."
        raise InputError(REPLAY, f"{folder} without step {missing[0]}", f"steps {there[0]} to {steps}", hint)
    _, described = read_step(folder, there[0])
    if (described["job"], described["checkpoints"]) == (job, checkpoints):
        raise InputError(
            REPLAY,
            f"the rollouts of the job {job}, whose checkpoints are in {checkpoints}",
            "other checkpoints than those of the run that made them",
            f"Add --set metadata.name={job}-replay, or another --set spec.checkpoint.uri.",
        )
