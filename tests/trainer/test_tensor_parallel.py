"""Ranks that share layers, experts or tokens (gloo): each adapter's gradient, by name, is that of one rank."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from lorarl_trainer.devices.cpu import CpuDevice
from support.gradients import CASES, gradients_of_ranks

Found = tuple[Path, dict[str, dict[str, torch.Tensor]]]
PARAMETERS = [
    pytest.param(ranks, name, marks=pytest.mark.long if case.long else ())
    for ranks, cases in CASES.items()
    for name, case in cases.items()
]


@pytest.fixture(scope="module")
def of_ranks(model_folder, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, bool], Found]:
    """Gives the models and the gradients of all cases by the number of ranks, the long ones or the others."""

    @cache
    def found(ranks: int, long: bool) -> Found:
        folder = tmp_path_factory.mktemp(f"ranks-{ranks}")
        names = [name for name, case in CASES[ranks].items() if case.long is long]
        return folder, gradients_of_ranks(folder, model_folder, names, ranks, gpus=0, precision="fp32")

    return found


@pytest.mark.parametrize(("ranks", "name"), PARAMETERS)
def test_several_ranks_have_the_gradients_of_one(of_ranks: Callable[[int, bool], Found], ranks: int, name: str) -> None:
    case = CASES[ranks][name]
    models, of_all = of_ranks(ranks, case.long)
    one = case.gradients(CpuDevice(), models, "fp32")
    tolerance = 1e-6 if case.context * case.data == ranks else 1e-5  # who shares no layers adds up nearly as one does
    assert one.keys() == of_all[name].keys()
    for tensor, expected in one.items():
        assert bool(expected.any()), tensor
        difference = ((of_all[name][tensor] - expected).norm() / expected.norm()).item()
        assert difference < tolerance, f"{tensor}: {difference:.1e}"
