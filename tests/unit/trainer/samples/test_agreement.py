"""What is normal between engine and trainer, and what is not: decided on sums by depth alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lorarl_trainer.guards.updates import describe
from lorarl_trainer.samples.agreement import (
    DEPTHS,
    FEWEST_TOKENS,
    Agreement,
    AgreementLimits,
    depth_of,
    positions_of,
)


def tokens(count: int, noise: float, start: int = 0, seed: int = 0) -> Agreement:
    """Tokens whose log-probabilities differ by this much noise, whatever the policy thinks of them."""
    draw = np.random.default_rng(seed)
    trainer = np.log(draw.uniform(0.01, 1.0, count)).astype(np.float32)
    moved = noise * (1 - np.exp(trainer)) * draw.choice([-1.0, 1.0], count)
    return Agreement.of((trainer + moved).astype(np.float32), trainer, np.arange(start, start + count))


def test_depths_double() -> None:
    positions = np.array([0, 1, 511, 512, 1023, 1024, 2048, 10**9])
    assert depth_of(positions).tolist() == [0, 0, 0, 1, 1, 2, 3, DEPTHS - 1]


def test_positions_go_on_from_the_prompt() -> None:
    assert positions_of([3, 10], [2, 3]).tolist() == [3, 4, 10, 11, 12]
    assert positions_of([], []).tolist() == []


def test_noise_does_not_depend_on_how_certain_the_policy_is() -> None:
    sure, unsure = np.log(np.full(1000, 0.98)), np.log(np.full(1000, 0.1))
    found = [
        Agreement.of((p + 0.04 * (1 - np.exp(p))).astype(np.float32), p.astype(np.float32), np.arange(1000)).noise
        for p in (sure, unsure)
    ]
    assert found[0] == pytest.approx(found[1], rel=0.35)


def test_a_base_that_is_certain_does_not_make_uncertain_steps_abnormal() -> None:
    """The same noise in the logits shows a hundred times more where the policy is uncertain."""
    certain = np.log(np.full(1000, 0.9995))
    base = Agreement.of((certain + 0.04 * 0.0005).astype(np.float32), certain.astype(np.float32), np.arange(1000))
    assert AgreementLimits.from_base(base).exceeded(tokens(5000, 0.04)) is None
    assert AgreementLimits.from_base(base).exceeded(tokens(5000, 0.2)) is not None


def test_a_base_without_any_difference_leaves_room_for_rounding() -> None:
    certain = np.zeros(100, np.float32)
    base = Agreement.of(certain, certain, np.arange(100))
    assert AgreementLimits.from_base(base, least=0.02).exceeded(tokens(5000, 0.04)) is None
    assert AgreementLimits.from_base(base, least=0.01).exceeded(tokens(5000, 0.04)) is not None


def test_a_probe_may_lose_a_little_of_its_effect_to_rounding() -> None:
    """Measured in bf16 on a small model that was nearly sure: 1.8e-4 nats without a probe, 5.1e-3 with one of 0.52."""
    sure = np.log(np.full(1000, 0.915, np.float32))
    base, probed, wrong = (Agreement.of(sure + np.float32(by), sure, np.arange(1000)) for by in (1.8e-4, 5.1e-3, 0.05))
    limits = AgreementLimits.from_base(base, least=0.01)
    assert limits.exceeded(probed) is not None
    assert limits.for_probe(0.03 * 0.52).exceeded(probed) is None
    assert limits.for_probe(0.03 * 0.52).exceeded(wrong) is not None
    steps = limits.after_probe(probed)
    assert steps.exceeded(probed) is None, "a step may be as noisy as the probe"
    assert steps.exceeded(wrong) is not None
    assert AgreementLimits(tolerance=1e-3).for_probe(1.0).exceeded(probed) is not None, "a person's tolerance holds"


def test_a_policy_that_became_certain_is_normal_by_its_mean() -> None:
    """Larger logits have more noise, but move a certain token's probability little."""
    limits = AgreementLimits.from_base(tokens(1000, 0.04))
    certain = np.log(np.full(1000, 0.95, np.float32))
    step = Agreement.of(certain + np.float32(0.012), certain, np.arange(1000))
    assert step.noise > limits.noise and step.mean < limits.mean
    assert limits.exceeded(step) is None


def test_a_step_like_the_base_passes_and_a_far_one_does_not() -> None:
    limits = AgreementLimits.from_base(tokens(1000, 0.04))
    assert limits.exceeded(tokens(5000, 0.05, seed=1)) is None
    found = limits.exceeded(tokens(5000, 0.2, seed=1))
    assert found is not None and found.position == 0 and found.tolerance is None
    assert "5.0 times the difference of the base model when the run started, expected at most 3 times" in describe(
        found
    )


def test_a_difference_that_begins_deep_in_the_sequence_is_found_there() -> None:
    limits = AgreementLimits.from_base(tokens(1000, 0.04))
    short, long = tokens(100_000, 0.04, start=-99_500), tokens(400, 0.5, start=4100)
    both = Agreement(
        short.differences + long.differences, short.uncertainty + long.uncertainty, short.tokens + long.tokens, 1.0
    )
    assert both.noise < limits.noise and both.mean < limits.mean, "on average all is well"
    found = limits.exceeded(both)
    assert found is not None and found.position == 4096 and "from position 4,096 on" in describe(found)


def test_a_few_deep_tokens_prove_nothing() -> None:
    limits = AgreementLimits.from_base(tokens(1000, 0.04))
    short, few = tokens(100_000, 0.04), tokens(FEWEST_TOKENS - 1, 0.5, start=600_000)
    both = Agreement(
        short.differences + few.differences, short.uncertainty + few.uncertainty, short.tokens + few.tokens, 1.0
    )
    assert limits.exceeded(both) is None


def test_what_is_not_a_number_is_never_normal() -> None:
    broken = Agreement.of(np.full(100, math.nan, np.float32), np.zeros(100, np.float32), np.arange(100))
    assert AgreementLimits(1.0, 1.0).exceeded(broken) is not None
    assert AgreementLimits(tolerance=1.0).exceeded(broken) is not None


def test_a_users_tolerance_replaces_the_noise() -> None:
    step = tokens(5000, 0.2)
    assert AgreementLimits(tolerance=1.0).exceeded(step) is None
    found = AgreementLimits(tolerance=0.01).exceeded(step)
    assert found is not None and found.tolerance == 0.01
    assert "expected at most 1e-02 (spec.rollout.logprobTolerance)" in describe(found)
