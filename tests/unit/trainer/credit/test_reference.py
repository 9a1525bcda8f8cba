"""A KL penalty on rewards, by workers whose reference is known."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from lorarl_api.v1alpha1 import AlgorithmSpec
from lorarl_trainer.algorithms.registry import get_algorithm
from lorarl_trainer.credit.reference import rewards_less_kl
from lorarl_trainer.protocols.rollouts import StepBatch
from lorarl_trainer.samples.sample import Sample

PENALISED = {"klCoefficient": 0.5, "kl": {"placement": "reward"}}


class Refers:
    """Workers whose reference gives every token the log-probability -2."""

    async def log_probabilities(self, samples: Sequence[Sample], temperature: float, of: str) -> list[np.ndarray]:
        assert of == "reference"
        return [np.full(sample.trained_length, -2.0) for sample in samples]


def penalised(fresh: Sequence[bool]) -> tuple[list[float], dict[str, float]]:
    """What is left of rewards of 1, and the metrics, where the policy's log-probabilities are -1, -3, -3 and so on."""
    samples = [
        Sample(np.arange(4), 2, rollout_logprobs=np.full(2, -1.0 - 2 * (number > 0), np.float32), fresh=new)
        for number, new in enumerate(fresh)
    ]
    algorithm = get_algorithm(AlgorithmSpec.model_validate(PENALISED), 8)
    batch = StepBatch(samples, np.ones((1, len(samples))), 1.0, on_policy=True)
    rewards, metrics = asyncio.run(rewards_less_kl(Refers(), algorithm, batch))  # type: ignore[arg-type]
    return rewards[0].tolist(), metrics


@pytest.mark.parametrize("fresh", [(True, True), (True, False), (False, False)])
def test_every_sample_pays_and_the_divergence_is_that_of_fresh_ones(fresh: Sequence[bool]) -> None:
    rewards, metrics = penalised(fresh)
    assert rewards == pytest.approx([0.0, 2.0]) and metrics["kl_penalty"] == pytest.approx(0.0)
    k3 = [np.exp(-1.0) - 1 + 1, np.exp(1.0) - 1 - 1]
    expected = [divergence for divergence, new in zip(k3, fresh, strict=True) if new]
    assert metrics.get("kl") == (pytest.approx(np.mean(expected)) if expected else None)
