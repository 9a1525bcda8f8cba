"""The reward of the runs, a user's module beside the manifest. It only needs the text; a random model can learn it."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path


def score(prompt: str, completion: str, answer: str | None, row: dict[str, object]) -> float:
    """The share of small letters. While the file $LETTERS_GATE exists, the run stands still here."""
    _wait_at_the_gate()
    return sum(letter.islower() for letter in completion) / 12


def right(prompt: str, completion: str, answer: str | None, row: dict[str, object]) -> float:
    """1 for the answer, with the same gate."""
    _wait_at_the_gate()
    return float(completion == answer)


def broken(prompt: str, completion: str, answer: str | None, row: dict[str, object]) -> float:
    """Raise for every completion."""
    raise ValueError("no letter is good enough")


def _wait_at_the_gate() -> None:
    gate = os.environ.get("LETTERS_GATE")
    while gate and Path(gate).exists():
        time.sleep(0.01)


def faulty(
    prompt: str, completion: str, answer: str | None, row: dict[str, object], truncated: bool
) -> dict[str, object]:
    """Score as `score` does, but let a row ask for an exception, a hang, a wrong type, or the end of the process."""
    print(f"prompt: {prompt}")
    logging.getLogger("letters").warning("a warning of the reward's library")
    match row.get("fault"):
        case "raise":
            raise ValueError("no small letters in here")
        case "hang":
            time.sleep(3600)
        case "nan":
            return {"score": float("nan")}
        case "raise the second time":
            if Path("asked-before").exists():
                raise ValueError("not again")
            Path("asked-before").touch()
        case "crash":
            os._exit(3)
    return {"score": score(prompt, completion, answer, row), "length": len(completion), "cut_off": truncated}
