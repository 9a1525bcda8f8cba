"""How a name is replaced: for the time of a block, and by its `Place`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lorarl_trainer.engine.vllm.binding import Place


@contextmanager
def replaced(place: Place, value: Any) -> Iterator[None]:
    """Give a module or class another attribute until the block ends."""
    before = vars(place.owner)[place.name]  # not getattr: a static method has to stay one
    setattr(place.owner, place.name, value)
    try:
        yield
    finally:
        setattr(place.owner, place.name, before)
