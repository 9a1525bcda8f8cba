import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lorarl_trainer.data.order import DataOrder, MixedOrder, Part


@given(rows=st.integers(1, 60), seed=st.integers(0, 2**31 - 1), epoch=st.integers(0, 50))
@settings(max_examples=50, deadline=None)
def test_every_epoch_sees_each_row_once(rows, seed, epoch):
    assert sorted(DataOrder(rows, seed).take(epoch * rows, rows)) == list(range(rows))


@given(rows=st.integers(1, 40), start=st.integers(0, 100), counts=st.lists(st.integers(0, 50), max_size=5))
@settings(max_examples=50, deadline=None)
def test_a_position_alone_goes_on_where_another_process_stopped(rows, start, counts):
    batches, position = [], start
    for count in counts:
        batches += DataOrder(rows, 7).take(position, count)
        position += count
    assert batches == DataOrder(rows, 7).take(start, sum(counts))


def test_epochs_and_seeds_shuffle_differently():
    order = DataOrder(100, 0)
    assert order.take(0, 100) != order.take(100, 100)
    assert order.take(0, 100) != DataOrder(100, 1).take(0, 100)


def test_the_order_is_the_one_it_has_always_been():
    # A changed order would give another adapter for the same seed, and break the resumption of runs that are under way.
    assert DataOrder(10, 0).take(0, 20) == [0, 2, 9, 1, 8, 5, 4, 3, 6, 7, 5, 3, 7, 8, 2, 4, 1, 0, 6, 9]
    program = "from lorarl_trainer.data.order import DataOrder; print(DataOrder(10, 0).take(5, 10))"
    other_process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert other_process.stdout.strip() == str(DataOrder(10, 0).take(5, 10))


def test_a_batch_may_be_larger_than_the_data():
    assert DataOrder(1, 0).take(3, 4) == [0, 0, 0, 0]


def test_a_million_rows_are_in_order_at_once():
    assert len(set(DataOrder(1_000_000, 0).take(999_990, 10))) == 10


@pytest.mark.parametrize("arguments", [(0, 0), (1, -1)])
def test_an_order_of_nothing_is_refused(arguments):
    with pytest.raises(ValueError, match="rows >= 1"):
        DataOrder(*arguments)


MIXTURE = [Part(10, 1.0), Part(3, 0.5), Part(200, 2.5)]


def test_a_mixture_keeps_its_shares_in_any_stretch():
    order = MixedOrder(MIXTURE, 0)
    for length in (8, 16, 80):
        counts = [0, 0, 0]
        for index in order.take(5, length):
            counts[0 if index < 10 else 1 if index < 13 else 2] += 1
        assert all(abs(count - length * share) <= 2 for count, share in zip(counts, (0.25, 0.125, 0.625), strict=True))
    assert all(0 <= index < 213 for index in order.take(0, 1000))


def test_each_source_of_a_mixture_is_seen_once_per_epoch():
    drawn = MixedOrder(MIXTURE, 3).take(0, 400)
    for first, rows in ((0, 10), (10, 3), (13, 200)):
        own = [index for index in drawn if first <= index < first + rows]
        epochs = [own[start : start + rows] for start in range(0, len(own) - rows + 1, rows)]
        assert epochs and all(sorted(epoch) == list(range(first, first + rows)) for epoch in epochs)


@given(start=st.integers(0, 300), counts=st.lists(st.integers(0, 50), max_size=5), seed=st.integers(0, 2**31 - 1))
@settings(max_examples=50, deadline=None)
def test_a_mixture_resumes_from_a_position_alone(start, counts, seed):
    batches, position = [], start
    for count in counts:
        batches += MixedOrder(MIXTURE, seed).take(position, count)
        position += count
    one = MixedOrder(MIXTURE, seed)
    assert batches == one.take(start, sum(counts)) == one.take(start, sum(counts))


def test_sources_of_one_size_have_orders_that_differ():
    drawn = MixedOrder([Part(50, 1.0), Part(50, 1.0)], 0).take(0, 100)
    assert [index for index in drawn if index < 50] != [index - 50 for index in drawn if index >= 50]
    assert drawn != MixedOrder([Part(50, 1.0), Part(50, 1.0)], 1).take(0, 100)


def test_the_order_of_a_mixture_never_changes():
    assert MixedOrder(MIXTURE, 0).take(0, 10) == [209, 0, 144, 11, 25, 169, 6, 117, 173, 7]
