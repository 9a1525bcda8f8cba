"""Where a start's time goes."""

import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorarl_trainer.timing import Span, StartClock, by_name, critical_path, with_worker

times = st.integers(0, 50)
spans = st.tuples(times, times).map(lambda pair: (min(pair), max(pair)))
some_parts = st.lists(spans, min_size=1, max_size=8).map(
    lambda spans: [Span(f"p{i}", "w", b, e) for i, (b, e) in enumerate(spans)]
)


def part(name: str, begin: float, end: float) -> Span:
    return Span(name, "driver", begin, end)


def test_of_parts_side_by_side_the_longer_one_was_waited_for() -> None:
    parts = [part("Ray", 0, 4), part("data", 0, 7), part("imports", 4, 12), part("engine", 12, 30)]
    assert critical_path(parts, 30) == [("Ray", 4), ("imports", 8), ("engine", 18)]


def test_what_no_part_accounts_for_is_told_as_such() -> None:
    assert critical_path([part("Ray", 0, 4), part("engine", 6, 9)], 10) == [
        ("Ray", 4),
        ("other", 2),
        ("engine", 3),
        ("other", 1),
    ]


def test_a_part_of_a_part_counts_with_its_whole() -> None:
    assert critical_path([part("engine", 0, 9), part("engine/graphs", 7, 9)], 9) == [("engine", 9)]


def test_what_still_ran_was_not_waited_for() -> None:
    parts = [part("Ray", 0, 4), part("download", 1, 20), part("engine", 6, 9)]
    assert critical_path(parts, 9) == [("Ray", 4), ("other", 2), ("engine", 3)]
    assert critical_path([part("download", 0, 20), part("engine", 6, 9)], 9) == [("other", 6), ("engine", 3)]


def test_what_starts_a_worker_ends_when_its_process_is_there() -> None:
    driver = [part("loss of the machine", 0, 1), part("devices", 1, 6), part("base model", 6, 8)]
    worker = [Span("worker process", "worker 0", 5, 6), Span("imports", "worker 0", 6, 14)]
    joined = with_worker(driver, worker)
    assert critical_path(joined, 14) == [
        ("loss of the machine", 1),
        ("devices", 4),
        ("worker process", 1),
        ("imports", 8),
    ]
    assert [span for span in joined if span.who == "worker 0"] == worker


def test_a_worker_that_was_there_before_was_not_waited_for() -> None:
    driver = [part("process", 0, 2), part("Ray", 2, 3), part("devices", 3, 4)]
    worker = [Span("worker process", "worker 0", -5, -4), Span("imports", "worker 0", -4, 2.5)]
    assert [span.seconds for span in with_worker(driver, worker) if span.name in ("Ray", "devices")] == [0, 0]


def test_clocks_may_differ_a_little() -> None:
    assert critical_path([part("Ray", 0, 4.05), part("engine", 4, 9)], 9) == [("Ray", 4), ("engine", 5)]


def test_seconds_of_one_name_are_added_and_other_comes_last() -> None:
    assert list(by_name([("other", 1), ("a", 2), ("other", 3), ("a", 1)]).items()) == [("a", 3), ("other", 4)]


@given(some_parts, times)
def test_a_path_adds_up_to_the_whole_time(parts: list[Span], end: int) -> None:
    path = critical_path(parts, end)
    assert sum(seconds for _, seconds in path) == pytest.approx(max(0, end - min(part.begin for part in parts)))
    assert all(seconds >= 0 for _, seconds in path)


def test_a_clock_times_a_name_once() -> None:
    clock = StartClock("driver", "process")
    for _ in range(2):
        with clock.part("Ray"):
            pass
    assert [part.name for part in clock.parts] == ["process", "Ray"]


def test_a_process_is_timed_from_its_very_start() -> None:
    code = "from lorarl_trainer.timing import process_start; print(process_start())"
    before = time.time()
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    tick = 0.02  # the kernel counts in hundredths of a second
    assert before - tick <= float(printed) <= time.time()
    assert float(printed) - before < 0.5, "long before it could import anything"
