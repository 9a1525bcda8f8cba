"""A line of a table of reasons."""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class Row(StrEnum):
    """A reason's name, what has happened, and what follows: both in sentences of Markdown."""

    cause: str
    then: str

    def __new__(cls, name: str, cause: str, then: str = "") -> Self:
        """Make a string of the name: the status has it."""
        self = str.__new__(cls, name)
        self._value_ = name
        self.cause, self.then = cause, then
        return self
