"""Does the server apply the adapter? Injected: what goes wrong between files and answers."""

from __future__ import annotations

import numpy as np
import pytest

from lorarl_trainer.samples.arrays import Floats
from lorarl_trainer.trained_adapters.serving.verdict import Measured, compare

TOKENS = 256


def numbers(seed: int, scale: float) -> Floats:
    return (np.random.default_rng(seed).normal(size=TOKENS) * scale).astype(np.float32)


BASE = -np.abs(numbers(0, 2.0))
EXPECTED = Measured(BASE, BASE + numbers(1, 0.3))


@pytest.mark.parametrize("noise", [1e-6, 0.02], ids=["fp32", "bf16"])
@pytest.mark.parametrize("effect", [1.0, 0.1])
def test_the_same_adapter_is_served(noise: float, effect: float) -> None:
    expected = Measured(BASE, BASE + numbers(1, effect))
    served = Measured(BASE + numbers(2, noise), expected.adapter_T + numbers(3, noise))
    assert compare(expected, served).fault is None


@pytest.mark.parametrize("noise", [1e-6, 0.02], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    ("adapter", "reason"),
    [
        (BASE, "applies something else"),
        (BASE + numbers(4, 0.3), "applies something else"),
        (BASE + 0.5 * numbers(1, 0.3), "applies something else"),
        (BASE + 2 * numbers(1, 0.3), "applies something else"),
        (np.full(TOKENS, np.nan, np.float32), "not all finite"),
    ],
    ids=["none", "another", "half its scale", "twice its scale", "nan"],
)
def test_anything_else_is_not(noise: float, adapter: Floats, reason: str) -> None:
    served = Measured(BASE + numbers(2, noise), adapter + numbers(3, noise))
    assert reason in str(compare(EXPECTED, served).fault)


def test_an_adapter_that_the_server_leaves_out_is_told_from_a_weak_one() -> None:
    """By bf16's noise it could be the same; but with any adapter, some bit changes."""
    weak = Measured(BASE, BASE + numbers(1, 0.001))
    noisy = BASE + numbers(2, 0.02)
    assert "does not apply it" in str(compare(weak, Measured(noisy, noisy)).fault)
    said = compare(weak, Measured(noisy, noisy + numbers(1, 0.001)))
    assert said.fault is None and "an effect this small shows no more" in said.said


def test_an_adapter_without_effect_is_not_served() -> None:
    assert "it changes nothing" in str(compare(Measured(BASE, BASE), Measured(BASE, BASE)).fault)


def test_another_base_model_is_told_from_noise() -> None:
    other = -np.abs(numbers(9, 2.0))
    assert "another base model" in str(compare(EXPECTED, Measured(other, other + numbers(1, 0.3))).fault)
