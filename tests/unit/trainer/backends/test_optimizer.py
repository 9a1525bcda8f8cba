"""The adapter's optimizer on parameters of a few numbers: clipping, seen where AdamW does not divide it away."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from lorarl_api.v1alpha1 import TrainerSpec
from lorarl_trainer.backends.model import AdaptedModel
from lorarl_trainer.backends.optimizer import AdapterOptimizer
from lorarl_trainer.backends.parallel import Parallel

ALONE = Parallel(None, 1, None, 1, 0, None, 1, 0)


def norm(values: Sequence[torch.Tensor]) -> float:
    return math.sqrt(sum(value.square().sum().item() for value in values))


def optimizer(limit: float, head: torch.Tensor | None = None) -> AdapterOptimizer:
    """Of parameters with two and with three numbers."""
    parameters = {name: torch.nn.Parameter(torch.ones(size)) for name, size in (("a", 2), ("b", 3))}
    model = SimpleNamespace(parameters=parameters, stacked=(), parallel=ALONE, outer=0, split_experts=0, norm=norm)
    spec = TrainerSpec.model_validate({"maxGradNorm": limit, "beta1": 0.9, "beta2": 0.99})
    heads = None if head is None else {"head": head}
    return AdapterOptimizer(cast(AdaptedModel, model), spec, fused=False, heads=heads)


@pytest.mark.parametrize(("limit", "share"), [(100.0, 1.0), (13.1, 1.0), (6.5, 0.5), (0.013, 0.001)])
@pytest.mark.parametrize("with_head", [False, True])
def test_a_gradient_is_scaled_to_its_limit_and_not_beyond(limit: float, share: float, with_head: bool) -> None:
    """The norm is 13 over all parameters and heads together: 3, 4 and 12."""
    made = optimizer(limit, torch.zeros(1, 1, requires_grad=True) if with_head else None)
    gradients = [torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0, 0.0 if with_head else 12.0])]
    gradients += [torch.tensor([[12.0]])] * with_head
    for total, gradient in zip(made.gradients, gradients, strict=True):
        total.copy_(gradient)
    assert made.step(1e-3) == pytest.approx(13.0), "it is reported as it was"
    first, second = made.moments("exp_avg"), made.moments("exp_avg_sq")
    for gradient, average, square in zip(gradients, first, second, strict=True):
        torch.testing.assert_close(average, 0.1 * share * gradient, rtol=1e-4, atol=0)
        torch.testing.assert_close(square, 0.01 * (share * gradient).square(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_norm_that_is_not_finite_changes_nothing(bad: float) -> None:
    made = optimizer(1.0)
    made.gradients[1].copy_(torch.tensor([1.0, bad, 1.0]))
    assert not math.isfinite(made.step(1e-3)) and made.updates == 0
    assert all((master == 1).all() for master in made.masters) and not any(m.any() for m in made.moments("exp_avg"))
