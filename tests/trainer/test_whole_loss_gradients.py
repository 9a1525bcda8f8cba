"""Every loss with all that may be on at once: correction, several turns, a KL penalty, clipping, advantages of tokens.

The gradient is compared with that of an independent autograd, through Transformers and PEFT, sample by sample.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from lorarl_api.v1alpha1 import AlgorithmSpec
from lorarl_trainer.algorithms.registry import get_algorithm
from lorarl_trainer.backends.layout import AdapterLayout
from lorarl_trainer.samples.sample import Sample
from support.tiny_models import VOCABULARY
from support.training import BareTrainer, grouped_samples, relative_difference
from support.transformers_side import gradients
from trainer.test_loss_gradients import CASES, LIMIT, TEMPERATURE, Values, logprobs_of, peft, trainer

__all__ = ["peft", "trainer"]  # fixtures

KL = 0.1
TAUGHT = {"distillation": {"adapter": "s3://team/teacher"}}
BY_TOKEN = {"weights": "token", "maxWeight": 1.2, "mask": "geometric", "maskLow": 0.9, "maskHigh": 1.15}
BY_SEQUENCE = {"weights": "sequence", "maxWeight": 1.2, "mask": "sequence", "maskLow": 0.3, "maskHigh": 4.0}
OF_TOKENS = {"weights": "token", "maxWeight": 1.1, "mask": "token", "maskLow": 0.8, "maskHigh": 1.3}
KINDS = {
    "grpo": ({}, BY_TOKEN),
    "dr_grpo": ({}, OF_TOKENS),
    "reinforce": ({}, BY_SEQUENCE),
    "dapo": ({"lossAggregation": "sequence_mean"}, BY_TOKEN),
    "gspo": ({"gspo": {"clipRangeLow": 0.2, "clipRangeHigh": 0.3}}, BY_SEQUENCE),
    "cispo": ({"cispo": {"maxWeight": 1.2}}, OF_TOKENS),
    "sapo": ({}, BY_TOKEN),
    "ppo": ({"clipRange": 0.2}, BY_TOKEN),
    "distillation": (TAUGHT, OF_TOKENS),
}
OF_EACH_TOKEN = ("ppo", "distillation")
"""Types whose advantages are of tokens: a critic's, or a teacher's."""


@pytest.fixture(scope="module")
def samples(trainer: BareTrainer) -> list[Sample]:
    """Samples of ragged groups. Some have turns that are not trained, and every ratio crosses its limits somewhere."""
    stream, found = np.random.default_rng(11), []
    for index, sample in enumerate(grouped_samples(VOCABULARY, prompts=6)):
        mask = np.ones(sample.response_length, np.bool_)
        if index % 2 and len(mask) > 4:
            mask[2 : 2 + len(mask) // 3] = False  # what a tool said between two turns
        found.append(replace(sample, rollout_logprobs=None, mask=mask if index % 2 else None))
    logprobs = trainer.trainer.log_probabilities(found, TEMPERATURE)
    return [
        replace(
            sample,
            old_logprobs=(old := (mine + stream.normal(0, 0.3, len(mine))).astype(np.float32)),
            rollout_logprobs=(old + stream.normal(0.12 * (index % 3 - 1), 0.15, len(mine))).astype(np.float32),
        )
        for index, (sample, mine) in enumerate(zip(found, logprobs, strict=True))
    ]


def of_tokens(samples: list[Sample]) -> list[Sample]:
    """The same with an advantage of each token."""
    stream = np.random.default_rng(12)
    return [replace(s, advantage=stream.normal(size=s.trained_length).astype(np.float32)) for s in samples]


def weights(log_ratio: Values, spec: dict[str, Any]) -> Values:
    """Truncated and masked importance weights, as the documents say."""

    def ratio(level: str) -> Values:
        whole = {"token": log_ratio, "sequence": log_ratio.sum(), "geometric": log_ratio.mean()}[level]
        return (whole * torch.ones_like(log_ratio)).exp()

    within = (ratio(spec["mask"]) >= spec["maskLow"]) & (ratio(spec["mask"]) <= spec["maskHigh"])
    return ratio(spec["weights"]).clip(max=spec["maxWeight"]) * within


def clipped(new: Values, old: Values, advantage: Values) -> Values:
    ratio = (new - old).exp()
    return -torch.min(ratio * advantage, ratio.clip(0.8, 1.2) * advantage)


@pytest.mark.parametrize("estimator", ["k2", "k3"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_loss_has_the_gradient_of_autograd(
    trainer: BareTrainer, samples: list[Sample], peft: Any, kind: str, estimator: str
) -> None:
    fields, correction = KINDS[kind]
    token_losses = clipped if kind in OF_EACH_TOKEN else CASES[kind][1]
    chosen = of_tokens(samples) if kind in OF_EACH_TOKEN else samples
    spec = {"type": kind, **fields, "correction": correction, "klCoefficient": KL, "kl": {"estimator": estimator}}
    choice = get_algorithm(AlgorithmSpec.model_validate(spec), LIMIT).loss
    tokens = sum(sample.trained_length for sample in chosen)
    metrics, _ = trainer.metrics_and_gradients(
        chosen, loss=choice, total_tokens=tokens, total_samples=len(chosen), on_policy=False
    )
    found = AdapterLayout(trainer.model).gather(trainer.optimizer.gradients)
    assert 0 < metrics["correction/masked_share"] < 1 and 0 < metrics["correction/clipped_share"] < 1
    assert kind == "reinforce" or kind == "sapo" or 0 < metrics["clipped_share"] < 1

    peft.zero_grad()
    total = torch.zeros(())
    for sample in chosen:
        trained = torch.from_numpy(np.ones(sample.response_length, bool) if sample.mask is None else sample.mask)
        new = logprobs_of(peft, sample)[trained]
        assert sample.rollout_logprobs is not None and sample.old_logprobs is not None
        old, rollout = torch.from_numpy(sample.old_logprobs), torch.from_numpy(sample.rollout_logprobs)
        advantage = sample.advantage if isinstance(sample.advantage, float) else torch.from_numpy(sample.advantage)
        losses = token_losses(new, old, advantage) * weights(old - rollout, correction)
        with torch.no_grad(), peft.disable_adapter():
            base = logprobs_of(peft, sample)[trained]
        away = new - base
        kl = away.square() / 2 if estimator == "k2" else (-away).exp() - 1 + away
        losses = losses + KL * kl * (weights(old - rollout, correction) > 0)  # what is masked trains by nothing
        divisor = {"token_mean": tokens, "sequence_mean": len(chosen) * len(new), "constant": len(chosen) * LIMIT}
        total = total + losses.sum() / divisor[choice.aggregation]
    total.backward()
    assert metrics["loss"] == pytest.approx(total.item(), abs=1e-6)
    expected = gradients(peft)
    assert found.keys() == expected.keys()
    assert relative_difference(found, expected) < 1e-5
