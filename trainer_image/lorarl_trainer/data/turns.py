"""What the assistant's turn is as text: where it ends, and whether it says all that was given. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple


class Turn(NamedTuple):
    """A turn of the assistant as it is generated.

    Attributes:
        opened: all text before it, with the turn opened: the prompt.
        ended: whether the stop token is there. Otherwise it has to be added.
    """

    opened: str
    answer: str
    ended: bool


def turn_of(opened: str, written: str, content: str, stops: Sequence[str]) -> Turn:
    """Return a turn without what the template writes after its end, such as a line break or a second stop token.

    `content`: the message. It may speak of a stop token: a turn ends at the first one after it.
    """
    if len(ends := _ends(written, stops)) > (inside := stops_within(content, stops)):
        return Turn(opened, written[: ends[inside]], ended=True)
    text, blank = written.rstrip(), content[len(content.rstrip()) :]
    return Turn(opened, text + blank if written.startswith(text + blank) else text, ended=False)


def says(turn: Turn, content: str) -> bool:
    """Return whether a turn has all of a message, whatever the white space. It may begin in the opened text.

    A template may write other marks in place of <think> and </think>.
    """
    before, answer, wanted = map(_packed, (turn.opened, turn.answer, content))
    if wanted in (before + answer)[max(0, len(before) - len(wanted) + 1) :]:
        return True
    return re.search(".*".join(map(re.escape, re.split("</?think>", wanted))), answer) is not None


def stops_within(content: str, stops: Sequence[str]) -> int:
    """Return how many stop tokens a message speaks of. One at its end is its own end."""
    return len(_ends(content, stops)) - content.rstrip().endswith(tuple(stops))


def _ends(text: str, stops: Sequence[str]) -> list[int]:
    """Return where each stop token in a text ends."""
    pattern = "|".join(map(re.escape, sorted(stops, key=len, reverse=True)))
    return [found.end() for found in re.finditer(pattern, text)] if pattern else []


def _packed(text: str) -> str:
    return "".join(text.split())
