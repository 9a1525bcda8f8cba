"""Makes a recipe's rows: train.jsonl and held_out.jsonl. No question is in both. The same recipe gives the same rows.

pairs.jsonl has the rows of train.jsonl as preferences: the right answer is chosen, and a wrong one is rejected.

python -m recipes.data FOLDER RECIPE ...
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from recipes.tasks import INSTRUCTION, RECIPES, Recipe

HELD_OUT = 512
SEED = 1
COMMONEST = 0.15
"""Largest share of an answer. Where one is right more often, a model learns to give only that one."""
WRONG_BY = (-10, -9, -2, -1, 1, 2, 9, 10)
"""What a wrong number differs by: slips in one place."""
NAMED = re.compile(r"(?:^|\. )([A-Z][\w'-]*)")
"""The people of a text: the first words of its statements."""
MOST_DRAWN = 100_000
"""Questions that are drawn at most, so that a task without so many different ones ends with an error."""

type Row = dict[str, str]


def main() -> None:
    folder = Path(sys.argv[1])
    for name in sys.argv[2:]:
        write(folder / name, RECIPES[name])


def write(folder: Path, recipe: Recipe) -> None:
    """Write a recipe's two files.

    Raises:
        ValueError: the task has too few different questions, or one answer is right too often.
    """
    count = HELD_OUT + recipe.train_rows
    rows = [{"recipe": recipe.name, **row} for row in islice(distinct(questions(recipe)), count)]
    if recipe.dataset is not None:
        random.Random(SEED).shuffle(rows)  # what is drawn late is rare, because the common questions came before
    if len(rows) <= 2 * HELD_OUT:
        raise ValueError(f"{recipe.name} has {len(rows)} different questions, expected more than {2 * HELD_OUT}")
    ((answer, times),) = Counter(row["answer"] for row in rows).most_common(1)
    if (share := times / len(rows)) > COMMONEST:
        raise ValueError(
            f"{recipe.name}: {answer!r} is right {share:.0%} of the time, expected at most {COMMONEST:.0%}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    held_out, train = rows[:HELD_OUT], rows[HELD_OUT:]
    for name, part in (("held_out", held_out), ("train", train), ("pairs", preferences(recipe, train))):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))


def read(folder: Path, name: str) -> list[Any]:
    """Return the rows of one of the files."""
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def preferences(recipe: Recipe, rows: Sequence[Row]) -> Iterator[dict[str, list[dict[str, str]]]]:
    """Make preference pairs in chat messages. The wrong answer is near: a number close by, or another person."""
    draw = random.Random(SEED)
    for row in rows:
        if recipe.answer == "number":
            wrong = str(int(row["answer"]) + draw.choice(WRONG_BY))
        else:
            others = [name for name in NAMED.findall(row["prompt"]) if name != row["answer"]]
            if not others:  # two people have the same name
                continue
            wrong = draw.choice(others)
        yield {
            "prompt": [{"role": "user", "content": row["prompt"]}],
            "chosen": [{"role": "assistant", "content": row["answer"]}],
            "rejected": [{"role": "assistant", "content": wrong}],
        }


def distinct(rows: Iterator[Row]) -> Iterator[Row]:
    """Leave out questions that came before."""
    seen: set[str] = set()
    for row in islice(rows, MOST_DRAWN):
        if row["prompt"] not in seen:
            seen.add(row["prompt"])
            yield row


def questions(recipe: Recipe) -> Iterator[Row]:
    """Draw rows: the prompt, the answer, and for reasoning-gym's scorer the whole entry as JSON."""
    if recipe.dataset is None:
        yield from sums()
        return
    import reasoning_gym

    drawn: Sequence[Any] = reasoning_gym.create_dataset(recipe.dataset, size=MOST_DRAWN, seed=SEED, **recipe.config)
    for entry in drawn:
        prompt = f"{entry['question']}\n{INSTRUCTION}"
        yield {"prompt": prompt, "answer": entry["answer"], "entry": json.dumps(entry)}


def sums() -> Iterator[Row]:
    """Draw the sums of `make demo`."""
    draw = random.Random(SEED)
    pairs = [(a, b) for a in range(10, 100) for b in range(10, 100)]
    draw.shuffle(pairs)
    for a, b in pairs:
        prompt = f"What is {a} plus {b}? Answer with only the number, nothing else."
        yield {"prompt": prompt, "answer": str(a + b), "entry": ""}


if __name__ == "__main__":
    main()
