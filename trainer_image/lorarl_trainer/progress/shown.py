"""Completions as people see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class FurtherSequence:
    """A sequence of tokens of an episode, beside its first one. What it shares with earlier ones is in it too."""

    model_prompt: str
    completion: str
    tokens: int
    truncated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredSample:
    """A completion and its reward."""

    group: int
    """Number of its prompt in the step, from 0. Completions of one prompt are compared with each other."""
    row: int
    """Number of the row in its data source, from 1."""
    prompt: str | Sequence[Mapping[str, Any]]
    """The prompt as in the data: a text or chat messages."""
    model_prompt: str
    """The prompt as the model sees it, after the chat template, with special tokens."""
    completion: str
    answer: str | None
    reward: float | None
    """None if it could not be scored."""
    advantage: float | None = None
    """None if it has no reward, and in an evaluation, which trains on nothing."""
    components: Mapping[str, float] = field(default_factory=dict)
    """Numbers that the reward returned besides its score, by name."""
    failure: str | None = None
    """Why it could not be scored."""
    tokens: int
    truncated: bool
    """Whether it was cut off at `rollout.maxResponseTokens`."""
    further: tuple[FurtherSequence, ...] = ()
    """The other sequences of its episode, which has one reward."""
