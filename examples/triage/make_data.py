"""Makes the tutorial's data: messages to a shop, and the desk that each belongs to.

train.jsonl is for training and held_out.jsonl for measuring. The sentences of the held-out messages are in no training
message, so a model that only remembers sentences gains nothing. The same --seed gives the same rows.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

TRAIN, HELD_OUT = 1000, 128
HELD_OUT_SENTENCES = 3
"""Of each desk."""

DESKS = {
    "billing": [
        "I was charged twice for the {item}.",
        "Why does my invoice for the {item} show a fee of {number} euros?",
        "The receipt for the {item} has the wrong company name.",
        "My card was billed before the {item} was sent.",
        "Can I pay for the {item} in {number} instalments?",
        "The discount code was not taken off the price of the {item}.",
        "I need an invoice with tax for the {item}.",
        "You took {number} euros too much from my account for the {item}.",
        "Which payment methods do you accept for the {item}?",
        "The total on my bill is wrong by {number} euros.",
        "Please send me the receipt of the {item} again.",
        "My payment for the {item} was declined, but the money is gone.",
    ],
    "delivery": [
        "My {item} has not arrived after {number} days.",
        "The tracking page says that the {item} is still in the depot.",
        "When will the {item} be at my door?",
        "The courier left the {item} with the wrong neighbour.",
        "Can the {item} be sent to another address?",
        "The parcel with the {item} was open when it came.",
        "I was at home, but the driver did not ring.",
        "Is it possible to get the {item} before the weekend?",
        "My package has been in transit for {number} days.",
        "The driver left a note, but no {item}.",
        "Do you ship the {item} to islands?",
        "Only one of the {number} boxes has reached me.",
    ],
    "returns": [
        "The {item} does not fit, and I want to send it back.",
        "How do I return a {item} that I ordered {number} days ago?",
        "The {item} broke after {number} days, and I want my money back.",
        "I received the wrong colour of the {item} and want to exchange it.",
        "Where is the label to send the {item} back?",
        "May I bring the {item} back to a shop?",
        "The {item} is faulty; I would like a replacement.",
        "I changed my mind about the {item}. Can I give it back?",
        "How long does a refund for the {item} take?",
        "I sent the {item} back {number} days ago and heard nothing.",
        "I want to swap the {item} for a larger one.",
        "Is the {item} still under guarantee, since it stopped working?",
    ],
    "account": [
        "I cannot log in to order the {item}.",
        "How do I change the password of my profile?",
        "The code to confirm my email never came.",
        "Please delete my profile and all my data.",
        "My user name is locked after {number} attempts.",
        "I want to change the email address that I sign in with.",
        "The app logs me out every {number} minutes.",
        "I have two profiles and want to merge them.",
        "How do I turn off the newsletter about the {item}?",
        "Someone else signed in with my user name.",
        "My wish list with the {item} is gone since I signed in on a new phone.",
        "Two-factor sign-in does not accept my {number} digit code.",
    ],
}
ITEMS = ("lamp", "kettle", "jacket", "bicycle", "keyboard", "sofa", "tent", "watch", "blender", "rucksack")
QUESTION = "Which desk is this message for: billing, delivery, returns or account? Answer with one word.\n\nMessage: "


def messages(sentences: Mapping[str, Sequence[str]], draw: random.Random) -> Iterator[dict[str, str]]:
    """Draw rows without end: prompt and answer."""
    while True:
        desk = draw.choice(list(sentences))
        sentence = draw.choice(sentences[desk]).format(item=draw.choice(ITEMS), number=draw.randint(2, 30))
        yield {"prompt": QUESTION + sentence, "answer": desk}


def distinct(rows: Iterator[dict[str, str]], count: int) -> list[dict[str, str]]:
    """Return the first rows with different prompts."""
    found: dict[str, dict[str, str]] = {}
    while len(found) < count:
        row = next(rows)
        found.setdefault(row["prompt"], row)
    return list(found.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder to write into")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    shuffled = {desk: draw.sample(sentences, len(sentences)) for desk, sentences in DESKS.items()}
    parts = {
        "held_out": ({desk: texts[:HELD_OUT_SENTENCES] for desk, texts in shuffled.items()}, HELD_OUT),
        "train": ({desk: texts[HELD_OUT_SENTENCES:] for desk, texts in shuffled.items()}, TRAIN),
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, (sentences, count) in parts.items():
        rows = distinct(messages(sentences, draw), count)
        (arguments.out / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
