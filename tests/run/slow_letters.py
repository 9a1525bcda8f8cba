"""Rewards that note when each completion was scored, as lines of $SCORED: the time, the prompt, the completion."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path


def score(prompt: str, completion: str, answer: str | None, row: dict[str, object]) -> float:
    """The share of small letters, without a delay."""
    with Path(os.environ["SCORED"]).open("a") as file:
        file.write(json.dumps([time.monotonic(), prompt, completion]) + "\n")
    return sum(letter.islower() for letter in completion) / (len(completion) + 1)


def slow(prompt: str, completion: str, answer: str | None, row: dict[str, object]) -> float:
    """The same, after a delay that depends on the completion. After the first $LAST_SCORED it gives no score."""
    time.sleep(len(completion) % 7 * 0.01)
    scored = Path(os.environ["SCORED"])
    over = scored.exists() and scored.read_bytes().count(b"\n") >= int(os.environ["LAST_SCORED"])
    reward = score(prompt, completion, answer, row)
    if over:
        raise ValueError("no judge in here")
    return reward
