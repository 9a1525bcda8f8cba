"""The critic's loss against a NumPy twin, and its gradient by finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lorarl_trainer.losses.value import value_loss

CLIP = 0.3
RETURNS = np.array([1.0, 1.0, 0.0, 0.0, 0.5, -1.0])
BEFORE = np.array([0.0, 0.0, 0.9, 0.9, 0.5, 0.2])
VALUES = np.array([0.1, 0.6, 0.8, 0.2, 0.7, 0.9])
"""Moved within the range, and beyond it towards the return; the last one beyond it and away from the return."""


def twin(values: np.ndarray) -> np.ndarray:
    held = np.where(values > BEFORE + CLIP, BEFORE + CLIP, np.where(values < BEFORE - CLIP, BEFORE - CLIP, values))
    errors = [max((v - r) ** 2, (h - r) ** 2) for v, h, r in zip(values, held, RETURNS, strict=True)]
    return np.array(errors) / 2


def of(values: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    leaf = torch.tensor(values, requires_grad=True)
    loss_N, columns = value_loss(leaf, torch.from_numpy(BEFORE), torch.from_numpy(RETURNS), CLIP)
    return leaf, loss_N, dict(columns)


def test_the_loss_is_that_of_the_paper() -> None:
    _, loss_N, columns = of(VALUES)
    np.testing.assert_allclose(loss_N.detach(), twin(VALUES))
    np.testing.assert_array_equal(columns["critic/loss"], loss_N.detach())
    assert columns["critic/clipped_share"].tolist() == [0, 1, 0, 1, 0, 0]


def test_the_gradient_is_that_of_finite_differences() -> None:
    leaf, loss_N, _ = of(VALUES)
    (gradient,) = torch.autograd.grad(loss_N.sum(), leaf)
    step = 1e-6
    for index in range(len(VALUES)):
        moved = np.eye(len(VALUES))[index] * step
        slope = (twin(VALUES + moved).sum() - twin(VALUES - moved).sum()) / (2 * step)
        assert gradient[index].item() == pytest.approx(slope, abs=1e-6)
    assert gradient[[1, 3]].tolist() == [0, 0], "clipped"


def test_nothing_is_clipped_before_the_first_update() -> None:
    leaf, loss_N, columns = of(BEFORE)
    (gradient,) = torch.autograd.grad(loss_N.sum(), leaf)
    np.testing.assert_allclose(gradient, BEFORE - RETURNS)
    assert not columns["critic/clipped_share"].any()
