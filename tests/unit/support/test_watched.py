"""What a fault is said to have cost, from what a job's status said."""

from __future__ import annotations

from support.real_cluster.watched import Cost, Seen, cost_of


def seen(at: float, step: int, resumed_from: int | None = None) -> Seen:
    return Seen(at, {"step": step} | ({} if resumed_from is None else {"resumedFromStep": resumed_from}))


def test_where_no_new_run_began_nothing_was_lost() -> None:
    assert cost_of(10.5, [seen(10, 7), seen(12, 8)], anew=False) == Cost(0, 1.5)
    assert cost_of(10.5, [seen(10, 7)], anew=False) is None


def test_a_step_that_the_old_run_makes_while_it_ends_is_no_recovery() -> None:
    history = [seen(10, 7), seen(12, 8)]
    assert cost_of(10.5, history, anew=True) is None
    assert cost_of(10.5, [*history, seen(50, 8, 8), seen(60, 9, 8)], anew=True) == Cost(0, 49.5)


def test_steps_that_are_made_again_were_lost() -> None:
    history = [seen(10, 7, 2), seen(50, 6, 6), seen(52, 7, 6)]
    assert cost_of(10, history, anew=True) is None
    assert cost_of(10, [*history, seen(54, 8, 6)], anew=True) == Cost(1, 44)
