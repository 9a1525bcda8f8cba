"""Rollouts in files: all that the updates of a step need, so that they can be made again without an engine.

Each step has two files. `step_0000001.safetensors` has the arrays, and `step_0000001.json` all else. Arrays of samples
of different lengths are joined, and `lengths` says where each ends.
Shape suffixes: P prompts of a step, G completions per prompt, S = P * G samples.
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
from lorarl_trainer.samples.types import Sample

FORMAT = 1
REPLAY = "--replay"
_NAME = re.compile(r"step_(\d{7})\.json")
_BY_TOKEN = ("rollout_logprobs", "kept", "mask", "routing")
"""Arrays of a sample that not every sample has, by their names in `Sample`."""


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
            adapter_version: the version that generated all of them.
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
    """Return the numbers of the steps in a folder, ascending.

    Raises:
        InputError: it has none.
    """
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
        limits = described["limits"]
        batch = StepBatch(
            samples_S=_samples(arrays),
            rewards_P_G=arrays["rewards"],
            temperature=described["temperature"],
            on_policy=described["onPolicy"],
            metrics=described["metrics"],
            teacher_S=_teacher(arrays),
            limits=AgreementLimits(**limits) if limits else None,
        )
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        hint = "Dump the step again, or copy both of its files whole."
        raise InputError(REPLAY, f"{path}.json that cannot be read ({error})", "a dumped step", hint) from error
    return batch, described


def _stem(step: int) -> str:
    return f"step_{step:07d}"


def _arrays(batch: StepBatch, advantages_S: Sequence[float | Floats]) -> dict[str, np.ndarray[Any, Any]]:
    samples = batch.samples_S
    arrays = {
        "tokens": np.concatenate([np.asarray(sample.tokens, np.int64) for sample in samples]),
        "lengths": np.array([len(sample.tokens) for sample in samples], np.int64),
        "prompt_lengths": np.array([sample.prompt_length for sample in samples], np.int64),
        "fresh": np.array([sample.fresh for sample in samples]),
        "rewards": np.asarray(batch.rewards_P_G, np.float64),
        "advantages": np.concatenate(
            [
                np.broadcast_to(np.asarray(advantage, np.float32), sample.trained_length)
                for sample, advantage in zip(samples, advantages_S, strict=True)
            ]
        ),
    }
    for name in _BY_TOKEN:
        values = [getattr(sample, name) for sample in samples]
        arrays |= _joined(name, values) if any(value is not None for value in values) else {}
    return arrays | (_joined("teacher_logprobs", batch.teacher_S) if batch.teacher_S else {})


def _joined(name: str, values: Sequence[Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Return some arrays as one with their lengths, -1 for None."""
    there = [value for value in values if value is not None]
    lengths = [-1 if value is None else len(value) for value in values]
    joined = np.concatenate(there) if there else np.empty(0, np.float32)
    return {name: np.ascontiguousarray(joined), f"{name}.lengths": np.array(lengths, np.int64)}


def _parted(arrays: dict[str, np.ndarray[Any, Any]], name: str, count: int) -> list[Any]:
    """Undo `_joined`; return None for each if there are none."""
    if name not in arrays:
        return [None] * count
    lengths, start, found = arrays[f"{name}.lengths"].tolist(), 0, []
    for length in lengths:
        found.append(None if length < 0 else arrays[name][start : start + length])
        start += max(0, length)
    return found


def _samples(arrays: dict[str, np.ndarray[Any, Any]]) -> list[Sample]:
    ends = np.cumsum(arrays["lengths"])
    tokens = np.split(arrays["tokens"], ends[:-1])
    prompts = arrays["prompt_lengths"].tolist()
    fresh = arrays["fresh"].tolist() if "fresh" in arrays else [True] * len(tokens)  # earlier releases wrote none
    by_token = [_parted(arrays, name, len(tokens)) for name in _BY_TOKEN]
    return [
        Sample(ids, prompt, fresh=is_fresh, **dict(zip(_BY_TOKEN, values, strict=True)))
        for ids, prompt, is_fresh, *values in zip(tokens, prompts, fresh, *by_token, strict=True)
    ]


def _teacher(arrays: dict[str, np.ndarray[Any, Any]]) -> Sequence[Floats | None]:
    return _parted(arrays, "teacher_logprobs", 0)
