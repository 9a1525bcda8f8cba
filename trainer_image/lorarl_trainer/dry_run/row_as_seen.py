"""A row of the data as the model sees it, with what it learns marked, for people to read. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from lorarl_trainer.data.encoding import EncodedRow

MOST_TOKENS = 2000
"""Tokens of a row that are shown. Of a longer one, the middle is left out."""
SEEN, LEARNED = "|", ">"
type Decode = Callable[[list[int]], str]


def row_lines(rows: Sequence[EncodedRow], decode: Decode, note: str = "") -> Iterator[str]:
    """Yield the tokens of one row as text, each line marked as learned or not.

    Args:
        rows: what the row became: several for a conversation whose template writes turns otherwise once others follow.
        decode: returns the text of token ids, with special tokens.
        note: what else to say in the heading.
    """
    for number, row in enumerate(rows, start=1):
        part = f", part {number} of {len(rows)}," if len(rows) > 1 else ""
        learned = f"; it learns the lines with {LEARNED}" if row.answer_ids else ""
        yield f"row {row.row.number}{part} as the model sees it, special tokens included{note}{learned}:"
        yield from _lines(row, decode, MOST_TOKENS // len(rows))


def _lines(row: EncodedRow, decode: Decode, most: int) -> Iterator[str]:
    answer = [True] * len(row.answer_ids) if row.trained is None else [bool(one) for one in row.trained]
    ids, learned = [*row.prompt_ids, *row.answer_ids], [False] * len(row.prompt_ids) + answer
    if len(ids) <= most:
        yield from _marked(ids, learned, decode)
        return
    half = max(1, most // 2)
    yield from _marked(ids[:half], learned[:half], decode)
    yield f"  ... {len(ids) - 2 * half:,} tokens are left out here ..."
    yield from _marked(ids[-half:], learned[-half:], decode)


def _marked(ids: list[int], learned: Sequence[bool], decode: Decode) -> Iterator[str]:
    """Yield lines of text. A new line begins where what is learned begins, and where it ends."""
    end, before = 0, ""
    for is_learned, run in groupby(learned):
        end += len(list(run))
        whole = decode(ids[:end])  # a text alone may lose a space that it begins with
        text, before = whole[len(before) :], whole
        yield from (f"  {LEARNED if is_learned else SEEN} {line}" for line in text.splitlines())
