"""Rollouts in files: all that the updates of a step need, so that they can be made again without an engine.

Each step has two files. `step_0000001.safetensors` has the arrays, and `step_0000001.json` all else. The arrays of
samples are joined, see `samples.fields.Arrays`: those of each column that the step does not compute itself.
Shape suffixes: P prompts of a step, G completions or episodes per prompt, S samples.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from lorarl_trainer.errors import InputError
from lorarl_trainer.protocols.rollouts import StepBatch
from lorarl_trainer.samples.agreement import AgreementLimits
from lorarl_trainer.samples.arrays import Floats
from lorarl_trainer.samples.fields import Arrays, columns_of, from_arrays, joined, parted, to_arrays
from lorarl_trainer.samples.sample import Sample

FORMAT = 1
REPLAY = "--replay"
_TEACHER, _COUNTS = "teacher_logprobs", "counts"
_NAME = re.compile(r"step_(\d{7})\.json")
_COLUMNS = {name: column for name, column in columns_of(Sample).items() if not column.of_step}


class Dump:
    """Writes steps into a folder."""

    def __init__(self, folder: Path, job: str, checkpoints: str) -> None:
        """Take the folder, and whose rollouts they are: the job's name and the URI of its checkpoints."""
        self._folder, self._of = folder, {"job": job, "checkpoints": checkpoints}

    def keep(
        self,
        step: int,
        batch: StepBatch,
        advantages_S: Sequence[float | Floats],
        adapter_version: int,
        position: int,
        limits: AgreementLimits | None,
    ) -> None:
        """Write a step. A step of the same number is replaced.

        Args:
            step: its number.
            batch: its samples, as they came from the engine and the reward.
            advantages_S: what the algorithm made of them, for people: a replay computes them again.
            adapter_version: the version that the step updates. Each sample has that which generated it.
            position: rows taken so far.
            limits: how well engine and trainer must agree.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        described = {
            "format": FORMAT,
            **self._of,
            "step": step,
            "adapterVersion": adapter_version,
            "position": position,
            "temperature": batch.temperature,
            "onPolicy": batch.on_policy,
            "limits": asdict(limits) if limits else None,
            "metrics": dict(batch.metrics),
        }
        save_file(_arrays(batch, advantages_S), self._folder / f"{_stem(step)}.safetensors")
        # Last, so that a step that is described is whole.
        (self._folder / f"{_stem(step)}.json").write_text(json.dumps(described, indent=1) + "\n")


def dumped_steps(folder: Path) -> list[int]:
    """Return the numbers of the steps in a folder, ascending. Raises InputError if it has none."""
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    if steps := sorted(int(found[1]) for name in names if (found := _NAME.fullmatch(name))):
        return steps
    hint = "Make them with lorarl run JOB --dump-rollouts DIR."
    raise InputError(REPLAY, f"{folder} without rollouts", "a folder with step_0000001.json and others", hint)


def read_step(folder: Path, step: int) -> tuple[StepBatch, dict[str, Any]]:
    """Return a step's samples, and what its JSON file says.

    Raises:
        InputError: the files are not there, or not whole.
    """
    path = folder / _stem(step)
    try:
        described: dict[str, Any] = json.loads(path.with_suffix(".json").read_text())
        if described["format"] != FORMAT:
            raise ValueError(f"it has the format {described['format']}, and this release reads {FORMAT}")
        arrays = load_file(path.with_suffix(".safetensors"))
        limits, samples_S = described["limits"], from_arrays(Sample, arrays)
        batch = StepBatch(
            samples_S=samples_S,
            rewards_P_G=arrays["rewards"],
            temperature=described["temperature"],
            on_policy=described["onPolicy"],
            metrics=described["metrics"],
            teacher_S=parted(_TEACHER, arrays, len(samples_S)) if _TEACHER in arrays else (),
            limits=AgreementLimits(**limits) if limits else None,
            counts=arrays[_COUNTS].tolist() if _COUNTS in arrays else (),
        )
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        hint = "Dump the step again, or copy both of its files whole."
        raise InputError(REPLAY, f"{path}.json that cannot be read ({error})", "a dumped step", hint) from error
    return batch, described


def _stem(step: int) -> str:
    return f"step_{step:07d}"


def _arrays(batch: StepBatch, advantages_S: Sequence[float | Floats]) -> Arrays:
    return {
        **to_arrays(batch.samples_S, _COLUMNS),
        "rewards": np.asarray(batch.rewards_P_G, np.float64),
        **({_COUNTS: np.asarray(batch.counts, np.int64)} if batch.counts else {}),
        **joined("advantages", advantages_S, np.float32),
        **joined(_TEACHER, batch.teacher_S, np.float32),
    }
