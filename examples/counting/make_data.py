"""Makes the tutorial's data: how often a letter occurs in a word.

train.jsonl is for training and held_out.jsonl for measuring. No word is in both. The same --seed gives the same rows.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path

HELD_OUT_WORDS = 40
WORDS = """
    accident address afternoon alphabet balloon banana barrel basket bedroom beginning believe berry between bicycle
    blossom bottle breakfast bubble butter button cabbage calendar camera candle carpet carrot castle ceiling cheese
    cherry chicken chocolate cinema coffee collect committee computer corner cottage cotton cucumber daffodil dinner
    dollar dragon dresser eleven elephant engine evening feather fifteen follow football forest garden garlic goggles
    grammar guitar hammer harbour holiday hollow honey hotel hundred insect island jacket jelly journey kangaroo keeper
    kettle kitchen ladder lantern lemon letter lettuce library lobster luggage mammoth marble market meadow message
    middle mirror missing monkey morning mountain mushroom narrow needle nineteen number nutmeg orange onion oyster
    paddle paper parrot passage pattern pencil pepper pigeon pillow pineapple planet pocket potato puddle pumpkin puzzle
    rabbit raccoon railway raspberry remember ribbon river saddle sailor sausage scissors seventeen shadow sheep
    silver sister slipper soccer spinach squirrel staircase strawberry street success summer sunset support swimming
    table teacher teddy temple thirteen thunder tomato tomorrow traffic tunnel twenty umbrella valley vanilla village
    waffle walnut weather wedding weekend whistle window winter wooden woollen yellow yesterday zipper
"""


def rows(words: Sequence[str], draw: random.Random) -> list[dict[str, str]]:
    """Return a question for each letter of each word, as many with one of it as with more."""
    counted = [(word, letter, word.count(letter)) for word in words for letter in sorted(set(word))]
    single, several = ([row for row in counted if (row[2] > 1) is more] for more in (False, True))
    chosen = several + draw.sample(single, min(len(single), len(several)))
    draw.shuffle(chosen)
    return [
        {
            "prompt": f"How many times does the letter {letter} appear in the word {word}? Answer with a number.",
            "answer": str(count),
        }
        for word, letter, count in chosen
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder to write into")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    ordered = WORDS.split()
    words = draw.sample(ordered, len(ordered))
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, part in (("held_out", words[:HELD_OUT_WORDS]), ("train", words[HELD_OUT_WORDS:])):
        text = "".join(json.dumps(row) + "\n" for row in rows(part, draw))
        (arguments.out / f"{name}.jsonl").write_text(text)


if __name__ == "__main__":
    main()
