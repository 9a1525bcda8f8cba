"""How messages for people are put together."""

from __future__ import annotations


def sentences(*parts: str) -> str:
    """The parts that are not empty, each with a full stop. Text from other components may come with one or without."""
    texts = [part.strip() for part in parts]
    return " ".join(text if text.endswith((".", "!", "?")) else f"{text}." for text in texts if text)
