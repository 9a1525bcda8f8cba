"""The tutorial's reward: 1 if the last number of the completion is right, and a little for a short answer."""

import re


def score(prompt: str, completion: str, answer: str, row: dict[str, str]) -> dict[str, float]:
    numbers = re.findall(r"\d+", completion)
    right = bool(numbers) and numbers[-1] == answer
    short = len(completion) <= 60
    return {"score": right + 0.1 * (right and short), "right": right, "short": short}
