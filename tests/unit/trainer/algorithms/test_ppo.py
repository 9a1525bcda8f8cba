"""Generalised advantages against the sums of their paper, and what a step asks of a critic."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from lorarl_api.v1alpha1 import AlgorithmSpec, TrainerSpec
from lorarl_trainer.algorithms.ppo import explained_variance, generalised, normalised
from lorarl_trainer.algorithms.registry import get_algorithm
from lorarl_trainer.credit.critic import critic_update, judged, policy_learning_rate
from lorarl_trainer.protocols.rollouts import StepBatch
from lorarl_trainer.samples.critic import CriticChoice
from lorarl_trainer.samples.sample import Sample
from lorarl_trainer.schedule import learning_rate

FLOATS = some.floats(-10, 10, width=32)


def choice(discount: float = 1.0, trace: float = 1.0, **fields: object) -> CriticChoice:
    values = {"clip_range": 0.5, "learning_rate": None, "warmup_steps": 0} | fields
    return CriticChoice(discount, trace, **values)  # type: ignore[arg-type]


def twin(rewards: Sequence[float], values: Sequence[float], gamma: float, lam: float) -> list[float]:
    """Equation 16 of the paper, term by term: A_t = sum over l of (gamma lambda)^l delta_(t+l)."""
    last = len(values)
    after = [*values, 0.0]
    deltas = [rewards[t] + gamma * after[t + 1] - values[t] for t in range(last)]
    return [sum((gamma * lam) ** (other - t) * deltas[other] for other in range(t, last)) for t in range(last)]


@given(
    samples=some.lists(some.lists(some.tuples(FLOATS, FLOATS), min_size=1, max_size=6), min_size=1, max_size=4),
    gamma=some.floats(0.5, 1.0),
    lam=some.floats(0.0, 1.0),
)
@settings(max_examples=50, deadline=None)
def test_advantages_are_those_of_the_paper(samples: list[list[tuple[float, float]]], gamma: float, lam: float) -> None:
    rewards, values = ([np.array([pair[of] for pair in sample]) for sample in samples] for of in (0, 1))
    advantages, returns = generalised(rewards, values, choice(gamma, lam))
    for found, target, reward, value in zip(advantages, returns, rewards, values, strict=True):
        expected = twin(reward.tolist(), value.tolist(), gamma, lam)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(target, np.add(expected, value), rtol=1e-4, atol=1e-4)


def test_the_ends_of_lambda_are_one_step_and_the_whole_return() -> None:
    rewards, values = [np.array([0.0, 0.0, 1.0])], [np.array([0.2, 0.5, 0.7])]
    (one_step,), _ = generalised(rewards, values, choice(trace=0.0))
    np.testing.assert_allclose(one_step, [0.3, 0.2, 0.3], rtol=1e-6)
    (whole,), (target,) = generalised(rewards, values, choice())
    np.testing.assert_allclose(whole, [0.8, 0.5, 0.3], rtol=1e-6)
    np.testing.assert_allclose(target, [1.0, 1.0, 1.0], rtol=1e-6)
    _, (discounted,) = generalised(rewards, values, choice(discount=0.5))
    np.testing.assert_allclose(discounted, [0.25, 0.5, 1.0], rtol=1e-6)


def test_advantages_are_normalised_over_all_tokens() -> None:
    found = normalised([np.array([1.0, 2.0], np.float32), np.array([6.0], np.float32)])
    every = np.concatenate(found)
    assert [len(one) for one in found] == [2, 1]
    assert every.mean() == pytest.approx(0, abs=1e-6) and every.std() == pytest.approx(1, abs=1e-5)
    assert not np.concatenate(normalised([np.full(3, 0.5, np.float32)])).any(), "all are equal"


@pytest.mark.parametrize(
    ("values", "explained"), [([0.0, 1.0], 1.0), ([0.5, 0.5], 0.0), ([1.0, 0.0], -3.0), ([5.0, 6.0], 1.0)]
)
def test_explained_variance_compares_with_a_constant(values: list[float], explained: float) -> None:
    assert explained_variance(np.array(values), np.array([0.0, 1.0])) == pytest.approx(explained)
    assert explained_variance(np.array(values), np.array([1.0, 1.0])) is None


class Expects:
    """Workers whose critic expects a tenth of a token's place."""

    async def values(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        return [np.arange(sample.trained_length, dtype=np.float32) / 10 for sample in samples]


def test_a_reward_is_the_last_tokens_and_a_penalty_each_tokens_own() -> None:
    lengths, rewards = [2, 1, 3], np.array([[1.0], [np.nan], [0.0]])
    samples = [Sample(np.arange(2 + length), 2) for length in lengths]
    penalties = [np.full(length, 0.1) for length in lengths]
    batch, advantages, metrics = asyncio.run(
        judged(Expects(), choice(), StepBatch(samples, rewards, 1.0, on_policy=True), penalties)  # type: ignore[arg-type]
    )
    one, unscored, other = batch.samples_S
    np.testing.assert_allclose(one.returns, [0.8, 0.9], rtol=1e-6)
    np.testing.assert_allclose(other.returns, [-0.3, -0.2, -0.1], rtol=1e-5)
    np.testing.assert_allclose(other.values, [0.0, 0.1, 0.2], rtol=1e-6)
    assert unscored.values is None and advantages[1] == 0.0, "it takes no part"
    raw = np.array([0.8, 0.8, -0.3, -0.3, -0.3])
    expected = (raw - raw.mean()) / (raw.std() + 1e-6)
    np.testing.assert_allclose(np.concatenate([advantages[0], advantages[2]]), expected, rtol=1e-5)
    assert metrics["critic/value"] == pytest.approx(0.08) and metrics["critic/return"] == pytest.approx(0.22)
    assert metrics["critic/explained_variance"] == pytest.approx(
        1 - np.var(raw) / np.var([0.8, 0.9, -0.3, -0.2, -0.1]), abs=1e-5
    )


def test_the_critic_learns_at_its_own_rate_and_first_alone() -> None:
    trainer = TrainerSpec.model_validate({"learningRate": 1e-4, "warmupSteps": 4, "learningRateSchedule": "cosine"})
    assert critic_update(None, trainer, 1, 10) is None
    for step in range(1, 11):
        like_policy, own = (
            critic_update(choice(learning_rate=of, warmup_steps=2), trainer, step, 10) for of in (None, 1e-3)
        )
        assert like_policy is not None and own is not None
        assert like_policy.learning_rate == learning_rate(trainer, step, 10)
        assert own.learning_rate == pytest.approx(10 * like_policy.learning_rate)
        assert own.alone is (step <= 2)


def test_the_policys_schedule_begins_after_the_critics_warm_up() -> None:
    trainer = TrainerSpec.model_validate({"learningRate": 1e-4, "warmupSteps": 4, "learningRateSchedule": "cosine"})
    critic = choice(warmup_steps=3)
    rates = [policy_learning_rate(critic, trainer, step, 10) for step in range(1, 11)]
    assert rates == [0.0, 0.0, 0.0, *(learning_rate(trainer, step, 7) for step in range(1, 8))]
    assert rates[3] == 0.25e-4, "the first update has the first rate of the warm-up"
    assert [policy_learning_rate(None, trainer, step, 10) for step in (1, 5)] == [
        learning_rate(trainer, step, 10) for step in (1, 5)
    ]


def test_ppo_reads_its_options() -> None:
    options = {
        "gamma": 0.9,
        "gaeLambda": 0.95,
        "criticLearningRate": 1e-3,
        "valueClipRange": 0.2,
        "criticWarmupSteps": 3,
    }
    algorithm = get_algorithm(AlgorithmSpec.model_validate({"type": "ppo", "ppo": options}), 8)
    assert algorithm.critic == CriticChoice(0.9, 0.95, 0.2, 1e-3, 3)
    assert (algorithm.group_size, algorithm.loss.kind, algorithm.loss.surrogate) == (1, "policy_gradient", "clipped")
    assert get_algorithm(AlgorithmSpec.model_validate({"type": "grpo"}), 8).critic is None
