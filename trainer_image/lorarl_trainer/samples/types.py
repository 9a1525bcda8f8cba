"""What travels between the driver and the workers: completions, samples to train on, updates and their results.

Nothing here imports torch: the driver is a light process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lorarl_trainer.algorithms.base import LossChoice

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Completion:
    """One generated sequence.

    Attributes:
        tokens: the response, with its end token if it has one, [T].
        logprobs: log-probability of each at the sampling temperature, in nats, [T]; empty for greedy ones.
        finished: it ended by itself; False where it was cut off at maxResponseTokens.
        adapter_version: the version that generated all of it.
    """

    tokens: Ints
    logprobs: Floats
    finished: bool
    adapter_version: int


@dataclass(frozen=True)
class Sample:
    """One sequence to train on.

    Attributes:
        tokens: prompt and response, [T].
        prompt_length: number of prompt tokens, 1 <= prompt_length < T.
        advantage: what the policy gradient weighs each of the response's tokens with.
        rollout_logprobs: vLLM's log-probabilities of the response's tokens, [T - prompt_length]; None for sft.
    """

    tokens: Ints
    prompt_length: int
    advantage: float = 0.0
    rollout_logprobs: Floats | None = None

    @property
    def response_length(self) -> int:
        """Number of tokens that are trained on."""
        return len(self.tokens) - self.prompt_length


@dataclass(frozen=True)
class UpdateRequest:
    """One optimizer update: this worker's samples, and what holds over all workers.

    Attributes:
        samples: this data-parallel worker's share.
        loss: which loss.
        total_tokens: response tokens of all workers' samples: the loss is their mean.
        temperature: at which log-probabilities are taken.
        learning_rate: of this update.
        seed: of the dropout masks.
        on_policy: the adapter has not changed since the samples were generated, so that rollout and trainer have to agree.
        tolerance: largest mean absolute log-probability difference, in nats; checked on on-policy samples before the update.
    """

    samples: Samples
    loss: LossChoice
    total_tokens: int
    temperature: float
    learning_rate: float
    seed: int
    on_policy: bool
    tolerance: float


@dataclass(frozen=True)
class UpdateResult:
    """What an update did: means over all workers' response tokens.

    Attributes:
        loss: mean loss a token.
        grad_norm: before clipping; 0 where the update was withheld.
        logprob_difference: mean absolute difference of rollout and trainer log-probabilities, in nats; None for sft.
        largest_difference: the largest of them; None for sft.
        rollout_kl: k3 estimate of KL(rollout || trainer); None for sft.
        base_kl: k3 estimate of KL(policy || base); None without a KL penalty.
        clipped: share of tokens whose ratio was clipped; None for sft.
        entropy: mean -log p of the sampled tokens, an unbiased estimate of the policy's entropy in nats; None for sft.
        drifted: the difference passed the tolerance (or is no number): no update was made.
        seconds: forward_backward and optimizer, and sleep where vLLM gave up memory for it.
    """

    loss: float
    grad_norm: float
    logprob_difference: float | None
    largest_difference: float | None
    rollout_kl: float | None
    base_kl: float | None
    clipped: float | None
    entropy: float | None
    drifted: bool
    seconds: dict[str, float]


class Completions(tuple[Completion, ...]):
    """Completions that travel as a few flat arrays: pickling hundreds of small ones takes longer than a small model's step."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel flat."""
        versions = np.array([c.adapter_version for c in self])
        finished = np.array([c.finished for c in self], dtype=bool)
        return _completions, (*_flat([c.tokens for c in self]), *_flat([c.logprobs for c in self]), finished, versions)


class Samples(tuple[Sample, ...]):
    """Samples that travel as a few flat arrays."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel flat."""
        prompts = np.array([s.prompt_length for s in self])
        advantages = np.array([s.advantage for s in self])
        rollouts = [s.rollout_logprobs for s in self if s.rollout_logprobs is not None]
        return _samples, (
            *_flat([s.tokens for s in self]),
            prompts,
            advantages,
            *(_flat(rollouts) if rollouts else (None, None)),
        )


@dataclass(frozen=True)
class CompletionChunk:
    """Completions that ended about the same time, handed over while others are still being generated.

    Attributes:
        indices: of their prompts among those that were asked for.
        completions: in the order of `indices`.
        seconds: of each phase since generation began; those of the last part are the whole's.
    """

    indices: Sequence[int]
    completions: Completions
    seconds: Mapping[str, float]


def _completions(
    tokens: Ints, lengths: Ints, logprobs: Floats, counts: Ints, finished: Any, versions: Ints
) -> Completions:
    parts = zip(_split(tokens, lengths), _split(logprobs, counts), finished.tolist(), versions.tolist(), strict=True)
    return Completions(Completion(*part) for part in parts)


def _samples(
    tokens: Ints, lengths: Ints, prompts: Ints, advantages: Any, rollouts: Floats | None, counts: Ints | None
) -> Samples:
    logprobs = [None] * len(lengths) if rollouts is None or counts is None else _split(rollouts, counts)
    return Samples(
        Sample(*part)
        for part in zip(_split(tokens, lengths), prompts.tolist(), advantages.tolist(), logprobs, strict=True)
    )


def _flat(arrays: Sequence[Any]) -> tuple[Any, Any]:
    """Return arrays one after another, and their lengths."""
    return np.concatenate(arrays) if arrays else np.empty(0), np.array([len(array) for array in arrays], dtype=np.int64)


def _split(flat: Any, lengths: Any) -> list[Any]:
    ends = np.cumsum(lengths).tolist()
    return [flat[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)]


def micro_batches(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Group sequences so that none of the padded batches has more than `token_budget` tokens; a longer sequence stands alone.

    Sequences of like length come together, so that little is padding. Deterministic.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    groups: list[list[int]] = []
    for index in order:
        # The first of a group is its longest, so it gives the padded length.
        if groups and lengths[groups[-1][0]] * (len(groups[-1]) + 1) <= token_budget:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups
