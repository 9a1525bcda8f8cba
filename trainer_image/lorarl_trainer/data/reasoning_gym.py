"""Rows of tasks of the package reasoning-gym, which generates them. The package is not one of lorarl's own.

Another process generates them, always with the same order of sets: some tasks depend on it, and a run that resumes must
get the same rows. So the driver needs no memory for the package either.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any

import numpy

from lorarl_api.v1alpha1 import ReasoningGymData
from lorarl_trainer.errors import InputError, LorarlError, in_one_line, last_exception

PACKAGE, MODULE = "reasoning-gym", "reasoning_gym"


def generate_rows(source: ReasoningGymData, field: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows, each with its number from 1. A row depends on the task, its settings, and seed + number.

    Raises:
        InputError: the package is missing, or has no such task, or the task refuses its settings.
        LorarlError: the task fails.
    """
    require_package(source.task, f"{field}.task")
    for number, entry in enumerate(_ask(source.model_dump() | {"field": field}), start=1):
        yield number, _row(entry, source)


def require_task(task: str, field: str) -> None:
    """Refuse a task that is not there. Raises InputError if the package is missing, or has no such task."""
    require_package(task, field)
    _ask({"task": task, "size": None, "field": field})


def require_package(task: str, field: str) -> None:
    """Refuse a task if the package is not installed.

    Raises:
        InputError: it is not.
    """
    if find_spec(MODULE) is None:
        raise InputError(
            field,
            f"{task}, but the package {PACKAGE} is not installed",
            f"a task of {PACKAGE}",
            f"Install it: lorarl env add {PACKAGE}. In a cluster, add it to the trainer's image.",
        )


def _row(entry: Mapping[str, Any], source: ReasoningGymData) -> dict[str, Any]:
    question, answer = str(entry["question"]), entry["answer"]
    return {
        "prompt": f"{question}\n\n{source.instruction}" if source.instruction else question,
        "question": question,
        "answer": None if answer is None else str(answer),
        "metadata": entry["metadata"],
        "config": dict(source.config or {}),
    }


def _ask(question: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Have another process generate a task's entries, or only look for the task."""
    process = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-m", __name__],
        input=json.dumps(question).encode(),
        capture_output=True,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        check=False,
    )
    if process.returncode != 0:
        why = last_exception(process.stderr.decode(errors="replace"))
        raise LorarlError(f"{question['field']}: the task {question['task']} of {PACKAGE} failed: {why}")
    answer = pickle.loads(process.stdout)
    if isinstance(answer, InputError):
        raise answer
    entries: list[Mapping[str, Any]] = answer
    return entries


def main() -> None:
    """Answer the question on standard input by a pickle on standard output."""
    question = json.loads(sys.stdin.buffer.read())
    with os.fdopen(os.dup(1), "wb") as output:
        os.dup2(2, 1)  # what the package prints
        try:
            answer: Any = _entries(question)
        except InputError as error:
            answer = error
        output.write(pickle.dumps(answer))


def _entries(question: Mapping[str, Any]) -> list[Any]:
    import reasoning_gym  # type: ignore[import-not-found, import-untyped, unused-ignore]
    from reasoning_gym.factory import DATASETS  # type: ignore[import-not-found, import-untyped, unused-ignore]

    task, field, size = question["task"], question["field"], question["size"]
    if task not in DATASETS:
        near = get_close_matches(task, DATASETS, n=1)
        raise InputError(
            field if size is None else f"{field}.task",
            f"{task}, which {PACKAGE} does not have",
            f"one of its {len(DATASETS)} tasks",
            f"Did you mean {near[0]}?"
            if near
            else f"Choose one of them, for example {', '.join(sorted(DATASETS)[:5])}.",
        )
    if size is None:
        return []
    config = dict(question["config"] or {})
    random.seed(question["seed"])
    numpy.random.seed(question["seed"] % 2**32)
    try:
        made = reasoning_gym.create_dataset(task, **{**config, "size": size, "seed": question["seed"]})
    except Exception as error:  # tasks check their settings by assertions, and Python by a TypeError
        raise InputError(
            f"{field}.config",
            f"{config or 'nothing'}, which the task {task} refuses ({in_one_line(error)})",
            f"settings of {task}",
            f"Fix {field}.config: the fields of the task's configuration in {PACKAGE}, other than size and seed.",
        ) from error
    entries = []
    for index in range(size):  # some tasks draw from the global random states too
        seed = question["seed"] + index
        random.seed(seed)
        numpy.random.seed(seed % 2**32)
        entries.append(made[index])
    return entries


if __name__ == "__main__":
    main()
