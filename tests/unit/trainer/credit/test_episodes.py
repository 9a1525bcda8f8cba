"""Episodes of several samples: compared as one, paid as one, and weighed as one where samples are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lorarl_api.v1alpha1 import AlgorithmSpec, TrainerSpec
from lorarl_trainer.algorithms.registry import get_algorithm
from lorarl_trainer.credit.advantages import advantages_of, scored_episodes
from lorarl_trainer.credit.reference import rewards_less_kl
from lorarl_trainer.loop import as_shown, update_requests
from lorarl_trainer.losses.base import LossInputs
from lorarl_trainer.losses.registry import compute_loss
from lorarl_trainer.losses.sequences import Sequences
from lorarl_trainer.progress import ScoredSample
from lorarl_trainer.protocols.rollouts import StepBatch
from lorarl_trainer.samples.requests import UpdateRequest
from lorarl_trainer.samples.sample import Sample

COUNTS = [2, 1, 1, 3]
LENGTHS = [2, 3, 5, 1, 2, 2, 4]


def sample(length: int, first: int = 0) -> Sample:
    logprobs = -np.linspace(0.5, 1.5, 20, dtype=np.float32)
    return Sample(np.arange(2 + length), 2, rollout_logprobs=logprobs[first : first + length])


def batch(lengths: Sequence[int] = LENGTHS, counts: Sequence[int] = COUNTS, **rewards: Any) -> StepBatch:
    given = rewards.get("rewards", [[1.0, 0.0], [0.0, 1.0]])
    return StepBatch([sample(one) for one in lengths], np.array(given), 1.0, on_policy=True, counts=counts)


def algorithm(**settings: Any) -> Any:
    return get_algorithm(AlgorithmSpec.model_validate(settings), 8)


def test_all_samples_of_an_episode_have_the_advantage_of_the_episode() -> None:
    of = batch()
    assert of.response_lengths.tolist() == [[5, 5], [1, 8]]
    advantages = advantages_of(algorithm(), of.rewards_P_G, of)
    plain = advantages_of(algorithm(), of.rewards_P_G, batch([1] * 4, ()))
    assert advantages == [one for one, count in zip(plain, COUNTS, strict=True) for _ in range(count)]
    assert of.of_episodes(advantages) == plain
    assert as_shown([], of.of_episodes(advantages)) == ()


def test_an_episode_without_a_reward_takes_no_part_with_any_of_its_samples() -> None:
    of = batch(rewards=[[np.nan, 0.0], [0.0, 1.0]])
    scored = scored_episodes(of, [0.0] * 2 + [1.0] * 5)
    assert {index: [one.trained_length for one in samples] for index, samples in scored.items()} == {
        1: [5],
        2: [1],
        3: [2, 2, 4],
    }
    assert [one.episode_length for one in scored[3]] == [8, 8, 8]
    assert scored[1][0].episode_length is None, "it is the only one"


def test_an_episode_pays_for_the_divergence_of_all_of_its_samples() -> None:
    class Refers:
        async def log_probabilities(self, samples: Sequence[Sample], temperature: float, of: str) -> list[np.ndarray]:
            return [np.full(one.trained_length, -2.0) for one in samples]

    penalised = algorithm(klCoefficient=1.0, kl={"placement": "reward", "estimator": "k1"})
    of = batch()
    rewards, metrics = asyncio.run(rewards_less_kl(Refers(), penalised, of))  # type: ignore[arg-type]
    paid = [sum(float((one.rollout_logprobs + 2).sum()) for one in of.samples_S[slice(*ends)]) for ends in
            ((0, 2), (2, 3), (3, 4), (4, 7))]  # fmt: skip
    assert (of.rewards_P_G - rewards).reshape(-1).tolist() == pytest.approx(paid, rel=1e-5)
    assert metrics["kl_penalty"] == pytest.approx(np.mean(paid))


def requests(of: StepBatch, **settings: Any) -> list[UpdateRequest]:
    chosen = algorithm(**settings)
    session = SimpleNamespace(
        spec=SimpleNamespace(trainer=TrainerSpec(steps=1)), present_algorithm=chosen, total_steps=1, limits=None
    )
    advantages = advantages_of(chosen, of.rewards_P_G, of)
    return list(update_requests(session, of, advantages, 1))  # type: ignore[arg-type]


def test_updates_have_equal_shares_of_whole_episodes() -> None:
    first, second = requests(batch(), updatesPerStep=2)
    assert [len(one.samples) for one in (first, second)] == [3, 4]
    assert [one.total_samples for one in (first, second)] == [2, 2]
    assert [one.total_tokens for one in (first, second)] == [10, 9]


def loss(of: StepBatch, **settings: Any) -> float:
    """The loss of a step at another policy than the one that made it."""
    [request] = requests(of, **settings)
    samples = list(request.samples)
    lengths = [one.trained_length for one in samples]
    rollout = torch.tensor(np.concatenate([one.rollout_logprobs for one in samples]))
    advantages = torch.tensor(np.repeat([one.advantage for one in samples], lengths), dtype=torch.float32)
    logprobs = rollout + 0.05 * torch.cos(30 * rollout)
    whole = [one.episode_length or length for one, length in zip(samples, lengths, strict=True)]
    sequences = Sequences.of(lengths, torch.device("cpu"), whole)
    inputs = LossInputs(logprobs, logprobs, rollout, advantages, None, False, sequences)
    return float(compute_loss(inputs, request.loss)[0].sum() / request.normalizer)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant"])
def test_an_episode_weighs_the_same_in_one_sample_and_in_several(aggregation: str) -> None:
    kind = {"type": "dr_grpo"} if aggregation == "constant" else {"type": "grpo", "lossAggregation": aggregation}
    rewards = np.array([[1.0, 0.0], [0.2, 1.0]])
    whole = StepBatch([sample(one) for one in (9, 5, 1, 8)], rewards, 1.0, on_policy=True)
    assert sum(LENGTHS) == 19
    parts = [sample(4), sample(5, 4), sample(5), sample(1), sample(2), sample(2, 2), sample(4, 4)]
    parted = StepBatch(parts, rewards, 1.0, on_policy=True, counts=COUNTS)
    assert loss(parted, **kind) == pytest.approx(loss(whole, **kind), rel=1e-5)
    assert loss(whole, **kind) != pytest.approx(loss(StepBatch(parts[:4], rewards, 1.0, on_policy=True), **kind))


def test_what_is_shown_has_the_advantage_of_its_episode() -> None:
    one = ScoredSample(
        group=0, row=1, prompt="", model_prompt="", completion="", answer=None, reward=1.0, tokens=1, truncated=False
    )
    shown = as_shown([one] * 4, batch().of_episodes([1.0, 1.0, 2.0, 3.0, 4.0, 4.0, 4.0]))
    assert [sample.advantage for sample in shown] == [1.0, 2.0, 3.0, 4.0]
