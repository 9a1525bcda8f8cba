"""Makes the demo's data: questions about sums of two numbers of two digits.

train.jsonl is for training, validation.jsonl for the evaluation during the training, and held_out.jsonl for the one
before and after it. The same --seed gives the same rows. No question is in two files, and no sum with its numbers
exchanged either.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

HELD_OUT, VALIDATION, TRAIN = 128, 64, 4000


def questions() -> list[list[tuple[int, int]]]:
    """Return all pairs of numbers, those that must not be separated in one list."""
    return [[(a, b), (b, a)] if a != b else [(a, b)] for a in range(10, 100) for b in range(10, a + 1)]


def row(pair: tuple[int, int]) -> dict[str, str]:
    """Return a row of the data: prompt and answer."""
    a, b = pair
    return {"prompt": f"What is {a} plus {b}? Answer with only the number, nothing else.", "answer": str(a + b)}


def split(seed: int) -> dict[str, list[dict[str, str]]]:
    """Return the rows of each file, in random order."""
    generator = random.Random(seed)
    together = questions()
    generator.shuffle(together)
    apart, rest = together[: HELD_OUT + VALIDATION], together[HELD_OUT + VALIDATION :]
    chosen = [row(generator.choice(same)) for same in apart]
    train = [row(question) for same in rest for question in same]
    generator.shuffle(train)
    return {"held_out": chosen[:HELD_OUT], "validation": chosen[HELD_OUT:], "train": train[:TRAIN]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder to write into")
    parser.add_argument("--seed", type=int, default=0, help="seed of the split and the order")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, rows in split(arguments.seed).items():
        (arguments.out / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
