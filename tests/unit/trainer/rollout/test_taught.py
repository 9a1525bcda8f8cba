"""What a teacher's log-probabilities become: advantages of tokens, rewards of completions, and metrics."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lorarl_api.v1alpha1 import AlgorithmSpec
from lorarl_trainer.algorithms.registry import get_algorithm
from lorarl_trainer.credit.advantages import advantages_of
from lorarl_trainer.protocols.rollouts import StepBatch
from lorarl_trainer.rollout.taught import compared
from lorarl_trainer.samples.sample import Sample

SPEC = {"type": "distillation", "distillation": {"adapter": "s3://team/teacher"}}
STUDENT = [[-1.0, -0.5], [-2.0], [-0.1, -0.2, -0.3]]
TEACHER = [[-0.5, -2.5], None, [-0.1, -0.4, -0.1]]


def samples() -> list[Sample]:
    return [Sample(np.arange(1 + len(row)), 1, rollout_logprobs=np.array(row, np.float32)) for row in STUDENT]


def teacher() -> list[np.ndarray | None]:
    return [None if row is None else np.array(row, np.float32) for row in TEACHER]


def twin() -> list[list[float] | None]:
    """The advantages, token by token."""
    return [
        None if theirs is None else [t - s for t, s in zip(theirs, mine, strict=True)]
        for mine, theirs in zip(STUDENT, TEACHER, strict=True)
    ]


def test_each_token_has_the_advantage_of_its_own() -> None:
    algorithm = get_algorithm(AlgorithmSpec.model_validate(SPEC), 8)
    rewards, _ = compared(samples(), teacher())
    batch = StepBatch(samples(), rewards.reshape(-1, 1), 1.0, on_policy=True, teacher_S=teacher())
    found = advantages_of(algorithm, batch.rewards_P_G, batch)
    for mine, expected in zip(found, twin(), strict=True):
        np.testing.assert_allclose(mine, 0.0 if expected is None else expected, atol=1e-6)
    assert isinstance(found[0], np.ndarray) and found[0].dtype == np.float32


def test_the_reward_is_the_mean_and_the_metrics_are_over_scored_tokens() -> None:
    rewards, metrics = compared(samples(), teacher())
    assert rewards[0] == pytest.approx(-0.75) and rewards[2] == pytest.approx(0.0, abs=1e-7)
    assert math.isnan(rewards[1]), "it takes no part in the update"
    scored = [value for row in twin() if row is not None for value in row]
    assert metrics == {
        "teacher/kl": pytest.approx(-sum(scored) / len(scored)),
        "teacher/scored_share": pytest.approx(5 / 6),
    }


def test_one_completion_of_a_prompt_is_the_default() -> None:
    assert get_algorithm(AlgorithmSpec.model_validate(SPEC), 8).group_size == 1
    assert get_algorithm(AlgorithmSpec.model_validate({**SPEC, "groupSize": 4}), 8).group_size == 4
