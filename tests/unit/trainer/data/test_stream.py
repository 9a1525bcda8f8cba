"""A run's rows of one source or of several, and how they resume."""

from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.data.order import Part
from lorarl_trainer.data.rows import Row
from lorarl_trainer.data.stream import RowStream

ROWS = [EncodedRow(Row(f"prompt {number}", None, {}, number), [number], []) for number in range(30)]
PARTS = [Part(10, 1.0), Part(20, 3.0)]


def test_rows_of_several_sources_come_in_their_shares() -> None:
    drawn = RowStream(ROWS, 0, 0, PARTS).next(40)
    assert sum(row.row.number < 10 for row in drawn) == 10
    assert {row.row.number for row in drawn} == set(range(30))


def test_one_source_has_the_order_that_it_always_had() -> None:
    assert RowStream(ROWS, 5, 7, [Part(30, 0.5)]).next(50) == RowStream(ROWS, 5, 7).next(50)


def test_a_resumed_stream_continues() -> None:
    whole = RowStream(ROWS, 1, 0, PARTS)
    first, then = whole.next(13), whole.next(50)
    assert then == RowStream(ROWS, 1, 13, PARTS).next(50)
    assert whole.position == 63
    assert first != then[:13]
