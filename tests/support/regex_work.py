"""Counts what a regular expression does: how many characters a backtracking engine such as Python's looks at."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from re import _constants as op  # type: ignore[attr-defined]  # no public module says what a pattern consists of
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any


class Work:
    """Matches a pattern as `re` does, and counts the characters that it looks at.

    Only what our patterns have: literals, sets, groups, branches, repeats of one character, ^, $ and the end.
    """

    def __init__(self, pattern: str) -> None:
        self._tree = list(parser.parse(pattern, re.DOTALL))
        self.looks = 0

    def finditer(self, text: str) -> Iterator[str]:
        """Yield what it matches, from left to right."""
        at = 0
        while at <= len(text):
            end = next(self._ends(self._tree, text, at), None)
            if end is None:
                at += 1
                continue
            yield text[at:end]
            at = max(end, at + 1)

    def _ends(self, tree: Sequence[Any], text: str, at: int) -> Iterator[int]:
        """Yield where a match of a sequence may end, in the engine's order."""
        if not tree:
            yield at
            return
        for middle in self._ends_of(tree[0], text, at):
            yield from self._ends(tree[1:], text, middle)

    def _ends_of(self, node: Any, text: str, at: int) -> Iterator[int]:
        kind, what = node
        if kind is op.SUBPATTERN:
            yield from self._ends(list(what[-1]), text, at)
        elif kind is op.BRANCH:
            for each in what[1]:
                yield from self._ends(list(each), text, at)
        elif kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            least, most, inner = what
            yield from self._repeats(kind, least, most, inner, text, at)
        elif kind is op.AT:
            self.looks += 1
            if at == (0 if what is op.AT_BEGINNING else len(text)):
                yield at
        else:
            self.looks += 1
            if at < len(text) and _fits(node)(text[at]):
                yield at + 1

    def _repeats(self, kind: Any, least: int, most: Any, inner: Any, text: str, at: int) -> Iterator[int]:
        if len(inner) != 1 or inner[0][0] in (op.SUBPATTERN, op.BRANCH):
            assert (least, most) == (0, 1), "a group that is repeated"
            yield from [*self._ends(list(inner), text, at), at]
            return
        fits, end = _fits(inner[0]), at
        if kind is op.MIN_REPEAT:
            while True:
                if end - at >= least:
                    yield end
                self.looks += 1
                if end == len(text) or end - at == most or not fits(text[end]):
                    return
                end += 1
        while end < len(text) and end - at != most and fits(text[end]):
            self.looks += 1
            end += 1
        yield from (place for place in range(end, at + least - 1, -1))


def _fits(node: Any) -> Callable[[str], bool]:
    kind, what = node
    if kind is op.ANY:
        return lambda _: True
    if kind is op.LITERAL:
        return lambda character: ord(character) == what
    if kind is op.NOT_LITERAL:
        return lambda character: ord(character) != what
    assert kind is op.IN, kind
    denied = what[0][0] is op.NEGATE
    of = re.compile("[" + "".join(map(_part, what[denied:])) + "]")
    return lambda character: (of.match(character) is None) == denied


def _part(node: Any) -> str:
    kind, what = node
    if kind is op.CATEGORY:
        return {op.CATEGORY_SPACE: r"\s", op.CATEGORY_NOT_SPACE: r"\S", op.CATEGORY_WORD: r"\w"}[what]
    return re.escape(chr(what)) if kind is op.LITERAL else "-".join(re.escape(chr(end)) for end in what)
