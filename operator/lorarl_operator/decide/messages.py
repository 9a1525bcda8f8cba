"""How messages for people are put together."""

from __future__ import annotations

from typing import Any

from lorarl_operator.decide.valid_spec import section


def sentences(*parts: str) -> str:
    """The parts that are not empty, each with a full stop. Text from other components may come with one or without."""
    texts = [part.strip() for part in parts]
    return " ".join(text if text.endswith((".", "!", "?")) else f"{text}." for text in texts if text)


def resumes(spec: dict[str, Any]) -> str:
    """What a job does when it trains again, as a verb and what follows: not every job resumes."""
    if section(spec, "checkpoint").get("resume") == "Never":
        return "starts from the beginning (checkpoint.resume is Never)"
    return "resumes from its newest checkpoint"
