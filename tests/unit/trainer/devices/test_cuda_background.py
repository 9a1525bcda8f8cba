"""How many multiprocessors training gets beside generation. The rest needs a GPU: tests/gpu/test_overlap.py."""

from __future__ import annotations

import pytest

from lorarl_trainer.devices.cuda_background import part_of


@pytest.mark.parametrize(
    ("multiprocessors", "share", "part"),
    [(132, 0.75, 96), (108, 0.75, 80), (132, 0.5, 64), (8, 0.75, 8)],
)
def test_a_part_is_whole_groups_of_multiprocessors(multiprocessors: int, share: float, part: int) -> None:
    assert part_of(multiprocessors, share) == part
