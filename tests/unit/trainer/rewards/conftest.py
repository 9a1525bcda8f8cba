"""Scorers of the functions in scoring.py, in real processes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from lorarl_api.v1alpha1 import RewardSpec
from lorarl_trainer.rewards.scorer import make_scorer
from lorarl_trainer.rewards.scores import Scorer
from unit.trainer.rewards.scoring import FUNCTIONS


@pytest.fixture
def scorer(tmp_path: Path) -> Iterator[Callable[..., Scorer]]:
    made: list[Scorer] = []
    before = set(psutil.Process().children())
    (tmp_path / "my_rewards.py").write_text(FUNCTIONS)

    def make(function: str, timeout_seconds: float = 10.0, processes: int = 2) -> Scorer:
        made.append(
            make_scorer(RewardSpec(function=function, timeout_seconds=timeout_seconds), tmp_path, processes=processes)
        )
        return made[-1]

    yield make
    for each in made:
        each.close()
    assert set(psutil.Process().children()) <= before


@pytest.fixture
def children_ignored() -> Iterator[None]:
    """Ignore ended children, as Ray does in each of its processes when the raylet is a subreaper."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGCHLD, before)
