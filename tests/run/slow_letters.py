"""Rewards that note when each completion was scored, as lines of $SCORED: the time, the prompt, the completion."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path


def score(prompt: str, completion: str, answer: str | None, row: dict[str, object]) -> float:
    """The share of small letters, at once."""
    with Path(os.environ["SCORED"]).open("a") as file:
        file.write(json.dumps([time.monotonic(), prompt, completion]) + "\n")
    return sum(letter.islower() for letter in completion) / (len(completion) + 1)


def slow(prompt: str, completion: str, answer: str | None, row: dict[str, object]) -> float:
    """The same, after some time that differs from completion to completion."""
    time.sleep(len(completion) % 7 * 0.01)
    return score(prompt, completion, answer, row)


def refuse(prompt: str, completion: str, answer: str | None, row: dict[str, object]) -> float:
    """No score."""
    score(prompt, completion, answer, row)
    raise ValueError("no judge in here")
