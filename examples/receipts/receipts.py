"""The tutorial's reward: 1 for the right price as the only number, and a part of it for any one price."""

import re


def score(prompt: str, completion: str, answer: str, row: dict[str, str]) -> dict[str, float]:
    numbers = re.findall(r"\d+", completion)
    right = numbers == [answer]
    one_price = len(numbers) == 1 and numbers[0] in re.findall(r"\d+", prompt)
    return {"score": 0.8 * right + 0.2 * one_price, "right": float(right), "one_price": float(one_price)}
