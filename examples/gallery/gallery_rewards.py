"""The rewards of the gallery's tasks. Each gives a part of the score for a part of the answer, and names the parts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

LABELS = ("refund", "delivery", "account", "other")
FENCED = re.compile(r"```(?:json)?\s*(.*?)```", re.DOTALL)


def extract(prompt: str, completion: str, answer: str, row: Mapping[str, Any]) -> dict[str, float]:
    """JSON with the right values: valid, the keys, each value, and nothing around it."""
    wanted = json.loads(answer)
    text = completion.strip()
    inner = found[1] if (found := FENCED.search(text)) else text[text.find("{") : text.rfind("}") + 1]
    try:
        got = json.loads(inner)
    except ValueError:
        got = None
    valid = isinstance(got, dict)
    keys = valid and set(got) == set(wanted)
    right = sum(valid and got.get(key) == value for key, value in wanted.items()) / len(wanted)
    only = valid and inner == text
    score = 0.1 * valid + 0.2 * keys + 0.6 * right + 0.1 * only
    return {"score": score, "valid": valid, "keys": keys, "right": right, "only": only}


def classify(prompt: str, completion: str, answer: str, row: Mapping[str, Any]) -> dict[str, float]:
    """The label alone; a part for a longer text that names the right one and no other."""
    said = completion.strip().lower().rstrip(".")
    named = [label for label in LABELS if re.search(rf"\b{label}\b", said)]
    right = named == [answer]
    alone = said in LABELS
    return {"score": 1.0 * (right and alone) or 0.4 * right, "right": right, "alone": alone}


def style(prompt: str, completion: str, answer: str | None, row: Mapping[str, Any]) -> dict[str, float]:
    """A friendly tip: by name, in one or two short sentences, and calm: without shouting or exclamation marks."""
    text = completion.strip()
    sentences = [part for part in re.split(r"[.!?]+(?:\s|$)", text) if part]
    by_name = prompt.split(" asks:")[0] in text
    short = 0 < len(sentences) <= 2 and all(len(part.split()) <= 18 for part in sentences)
    calm = bool(text) and "!" not in text and not re.search(r"\b[A-Z]{3,}\b", text)
    return {"score": (by_name + short + calm) / 3, "by_name": by_name, "short": short, "calm": calm}
