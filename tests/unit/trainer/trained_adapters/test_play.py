"""The turns of an evaluation end where those of a run end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from lorarl_trainer.samples.requests import GenerationRequest
from lorarl_trainer.samples.sample import Completion
from lorarl_trainer.trained_adapters.model import Answer, Decoding
from lorarl_trainer.trained_adapters.play import _Writer


def test_a_turn_ends_at_the_stops_and_the_room_of_its_request() -> None:
    """A request of an agent may name stops, and the model writes for all episodes at a time."""
    written: Any = SimpleNamespace(generate=lambda prompts, _: [[Answer("", True, [5, 6, 7, 8])] for _ in prompts])
    sampling: Any = None
    made: list[Completion] = []

    def take(_: Sequence[int], ended: Sequence[Completion]) -> None:
        made.extend(ended)

    asked = [
        GenerationRequest([1], max_tokens=4, stop_token_ids=(3, 7)),
        GenerationRequest([1], max_tokens=4),
        GenerationRequest([1], max_tokens=2, stop_token_ids=(3, 7)),
    ]
    asyncio.run(_Writer("base", written, Decoding(1, 4, sampling, ())).submit(asked, take))
    assert [one.tokens.tolist() for one in made] == [[5, 6, 7], [5, 6, 7, 8], [5, 6]]
    assert [one.finished for one in made] == [True, False, False]
