"""`tests/trainer/test_silent_faults.py` in bf16, with CUDA graphs, fused layers, and kernels that copy and compare."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import linear

from lorarl_trainer.engine.vllm.patches import linear as engine_layers
from lorarl_trainer.errors import LorarlError, PolicyDriftError
from support import silent_faults
from support.in_process import Colocated
from support.silent_faults import FAULTS, SLOW, train_with

REAL_BASE = os.environ.get("LORARL_TEST_REAL_BASE")
"""The folder of a pretrained model."""


@pytest.fixture(params=["random", "pretrained"])
def start(request: pytest.FixtureRequest, on_gpu, tmp_path: Path) -> Iterator[Callable[..., Colocated]]:
    """Starts workers on a model of random weights, or on a pretrained one."""
    if request.param == "random":
        yield lambda **changes: on_gpu(**(SLOW | changes))
        return
    if REAL_BASE is None:
        pytest.skip("LORARL_TEST_REAL_BASE names no pretrained model")
    started: list[Colocated] = []

    def make(**changes: Any) -> Colocated:
        gpu = {"cluster__gpusPerNode": 1, "rollout__gpuMemoryFraction": 0.1}
        started.append(Colocated(Path(REAL_BASE), tmp_path, **(SLOW | gpu | changes)))
        return started[-1]

    yield make
    for worker in started:
        worker.close()
    torch.cuda.empty_cache()


@pytest.mark.parametrize(("inject", "error", "message"), FAULTS, ids=[fault[0].__name__ for fault in FAULTS])
@pytest.mark.parametrize("after", [0, 2], ids=["start", "step-3"])
def test_a_fault_is_named_before_an_update_uses_it(
    start, inject: Callable[[Colocated], None], error: type[LorarlError], message: str, after: int
) -> None:
    made: list[int] = []
    with pytest.raises(error, match=message):
        train_with(start(), inject, after, made)
    last = 3 if after and inject is silent_faults.old_prefixes else after
    assert made == list(range(1, last + 1)), "no step ran on with the fault"


def test_an_engine_that_applies_no_adapter_is_named(start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_layers, "adapted_linear", lambda x, weight, bias, *adapter: linear(x, weight, bias))
    with pytest.raises(PolicyDriftError, match=r"do not apply the same adapter.* differ in .*q_proj.*down_proj"):
        train_with(start(), lambda worker: None, 0, [])


def test_a_scale_that_only_the_trainer_has_is_named(start) -> None:
    """In a pretrained model, that of queries and keys alone moves less than bf16 does."""
    with pytest.raises(PolicyDriftError, match=r"do not apply the same adapter.* differ in .*v_proj.*down_proj"):
        train_with(start(), silent_faults.trainer_scale, 0, [])


def test_a_healthy_run_is_not_stopped(start) -> None:
    made: list[int] = []
    train_with(start(trainer__learningRate=1e-3, trainer__steps=20), lambda worker: None, 0, made)
    assert made == list(range(1, 21))
