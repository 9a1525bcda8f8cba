"""The runs and the table of the off-policy benchmark."""

from __future__ import annotations

from bench_off_policy import table, wanted


def test_nothing_is_corrected_on_policy() -> None:
    assert [tuple(run.values()) for run in wanted([3])] == [
        (3, 0, False),
        (3, 1, False),
        (3, 1, True),
        (3, 2, False),
        (3, 2, True),
        (3, 4, False),
        (3, 4, True),
    ]


def test_the_table_has_means_and_the_range() -> None:
    right = [{"0": 0.25, "30": last} for last in (0.9, 1.0)]
    one = {"behind": 4, "corrected": True, "rollout_kl": 0.02, "correction/effective_share": 0.95}
    runs = [{"seed": seed, **one, "right": of} for seed, of in enumerate(right)]
    assert table(runs).splitlines()[2] == (
        "| 4 | `decoupled_token_is` | 2 | 25.0% | 95.0% | 90.0% to 100.0% | 0.0200 | 0.950 |"
    )
