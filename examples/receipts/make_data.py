"""Makes the tutorial's data: a short receipt, and the question what one thing on it cost.

train.jsonl is for training and held_out.jsonl for measuring. No thing that is bought is in both. The same --seed gives
the same rows.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path

TRAIN, HELD_OUT = 600, 96
HELD_OUT_THINGS = 12
THINGS = """
    apples bags balls bananas baskets belts blankets books bottles boxes bread brushes butter candles carrots chairs
    cheese clocks coats cups flowers forks glasses gloves hats honey lamps lemons milk mirrors nails onions oranges
    paper pears pencils pillows plates potatoes rice salt scarves shelves shirts shoes socks soap spoons stamps sugar
    tables tea tomatoes towels toys vases
"""


def row(things: Sequence[str], draw: random.Random) -> dict[str, str]:
    """Return a question about a receipt with three things."""
    bought, prices = draw.sample(things, 3), draw.sample(range(2, 90), 3)
    asked = draw.randrange(3)
    receipt = ", ".join(f"{thing} {price} dollars" for thing, price in zip(bought, prices, strict=True))
    question = f"What did the {bought[asked]} cost? Answer with only the number."
    return {"prompt": f"A receipt: {receipt}. {question}", "answer": str(prices[asked])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder to write into")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    ordered = THINGS.split()
    things = draw.sample(ordered, len(ordered))
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, part, count in (
        ("held_out", things[:HELD_OUT_THINGS], HELD_OUT),
        ("train", things[HELD_OUT_THINGS:], TRAIN),
    ):
        text = "".join(json.dumps(row(part, draw)) + "\n" for _ in range(count))
        (arguments.out / f"{name}.jsonl").write_text(text)


if __name__ == "__main__":
    main()
