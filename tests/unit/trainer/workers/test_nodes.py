"""Which worker is on which machine."""

from __future__ import annotations

from lorarl_trainer.workers.nodes import by_node


def test_the_workers_of_a_node_follow_each_other() -> None:
    """The first bundle is on the first node."""
    assert by_node({0: "b", 1: "a", 2: "b", 3: "a"}) == [[0, 2], [1, 3]]
    assert by_node({1: "a", 0: "a"}) == [[0, 1]]
    assert by_node({2: "c", 1: "b", 0: "a"}) == [[0], [1], [2]]
