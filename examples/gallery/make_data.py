"""Writes rows for the five tasks of the gallery, each with held-out rows: TASK.jsonl and TASK-held-out.jsonl."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAMES = ("Ana Silva", "Ben Okoro", "Chloe Martin", "David Kim", "Elif Kaya", "Farid Haddad", "Greta Lund", "Hugo Rossi")
ITEMS = ("kettle", "desk lamp", "rain jacket", "bike pump", "backpack", "coffee grinder", "keyboard", "tent")
CITIES = ("Lisbon", "Lagos", "Lyon", "Seoul", "Izmir", "Beirut", "Oslo", "Turin")
MESSAGES = {
    "refund": ("I want my money back for the {}.", "The {} broke after a day, please return what I paid."),
    "delivery": ("Where is my {}? It should have come on Monday.", "The parcel with the {} never arrived."),
    "account": ("I cannot log in to see my order of the {}.", "Please change the email address of my account."),
    "other": ("Do you sell the {} in green?", "Which {} do you recommend for a beginner?"),
}
TOPICS = ("saving water", "learning a language", "sleeping well", "packing a bag", "growing herbs", "reading more")
KINDS = ("fruits", "rivers", "tools", "sports", "planets", "animals", "colours", "instruments", "metals", "trees")
ROWS, TRIES = 200, 2000


def extract(pick: random.Random) -> dict[str, Any]:
    """A sentence of a customer, and what it says as JSON."""
    name, item, city = pick.choice(NAMES), pick.choice(ITEMS), pick.choice(CITIES)
    said = pick.choice(
        (
            f"Hello, this is {name} from {city}, my {item} stopped working.",
            f"I ordered a {item} to {city} last week. Regards, {name}",
            f"The {item} that you sent to me in {city} is the wrong colour. {name}",
        )
    )
    ask = 'Answer with JSON alone, with the keys "name", "item" and "city".'
    return {"prompt": f"{said}\n{ask}", "answer": json.dumps({"name": name, "item": item, "city": city})}


def classify(pick: random.Random) -> dict[str, Any]:
    """A message, and its label."""
    label = pick.choice(list(MESSAGES))
    said = pick.choice(MESSAGES[label]).format(pick.choice(ITEMS))
    return {"prompt": f"{said}\nAnswer with one word: refund, delivery, account or other.", "answer": label}


def style(pick: random.Random) -> dict[str, Any]:
    """A question whose answer has no wrong content, so that the style alone counts."""
    return {"prompt": f"{pick.choice(NAMES).split()[0]} asks: do you have a tip for {pick.choice(TOPICS)}?"}


def form(pick: random.Random) -> dict[str, Any]:
    """A list to write in a given form."""
    return {"prompt": f"Name three {pick.choice(KINDS)}, each on its own line after a dash, for {pick.choice(NAMES)}."}


def judge(pick: random.Random) -> dict[str, Any]:
    """A complaint that needs a reply."""
    said = pick.choice(MESSAGES["refund"] + MESSAGES["delivery"]).format(pick.choice(ITEMS))
    return {"prompt": f"Reply to {pick.choice(NAMES)} in two sentences: {said}"}


TASKS: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "extract": extract,
    "classify": classify,
    "style": style,
    "format": form,
    "judge": judge,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/gallery"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for task, make in TASKS.items():
        pick = random.Random(task)
        rows = {row["prompt"]: row for row in (make(pick) for _ in range(TRIES))}
        different = list(rows.values())[:ROWS]
        held_out = len(different) // 5
        for name, part in ((f"{task}-held-out", different[:held_out]), (task, different[held_out:])):
            (out / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))


if __name__ == "__main__":
    main()
