"""How far apart the engine's and the trainer's log-probabilities of the same tokens are, and how far apart is normal.

Both compute the same policy with kernels of their own, which round differently. How much that shows depends on the
model, its precision, the parallel layout and the temperature. So no number is fixed here: the noise of the base model
is measured when a run starts, and every step is compared with it.

Rounding moves logits. If a logit moves, log p of a sampled token moves by about (1 - p) times as much: not at all where
the policy is certain. So the sum of |difference| over the sum of (1 - p), here called noise, hardly depends on what is
sampled: benchmarks/results/agreement-2026-11-23.md has it for several models, temperatures, lengths and adapters.
Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lorarl_trainer.samples.arrays import Floats, Ints, Sums

DEPTHS = 12
"""Buckets of positions: up to 512 tokens into a sequence, up to 1,024, up to 2,048, and so on."""
_FIRST_DEPTH = 512
FEWEST_TOKENS = 64
"""A bucket with fewer tokens than this is not judged by itself: their mean is too uncertain."""
_LEAST_UNCERTAINTY = 0.01
"""Added per token, so that noise is defined for a policy that is certain of every token."""
TIMES_NORMAL = 3.0
"""A step's noise may be this many times that of the base at the start. In healthy runs it is 0.7 to 1.4 times that."""


def depth_of(positions: Ints) -> Ints:
    """Return the bucket of each position in its sequence, [N]."""
    doublings = np.log2(np.maximum(positions, 1) / _FIRST_DEPTH)
    return np.clip(np.floor(doublings) + 1, 0, DEPTHS - 1).astype(np.int64)


def positions_of(prompt_lengths: Sequence[int], response_lengths: Sequence[int]) -> Ints:
    """Return the position of each response token in its sequence, sample by sample, [N]."""
    parts = [
        np.arange(prompt, prompt + length) for prompt, length in zip(prompt_lengths, response_lengths, strict=True)
    ]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


@dataclass(frozen=True)
class Agreement:
    """Engine and trainer on the same tokens, by depth, [DEPTHS] each.

    Attributes:
        differences: sums of |log p of the engine - log p of the trainer|, in nats.
        uncertainty: sums of 1 - p.
        tokens: how many.
        largest: the largest difference of all.
    """

    differences: Sums
    uncertainty: Sums
    tokens: Sums
    largest: float

    @classmethod
    def of(cls, engine_N: Floats, trainer_N: Floats, positions_N: Ints) -> Agreement:
        """Compare log-probabilities of the same tokens."""
        depth_N = depth_of(positions_N)
        differences_N = np.abs(engine_N.astype(np.float64) - trainer_N)
        return cls(
            differences=_sums(depth_N, differences_N),
            uncertainty=_sums(depth_N, 1 - np.exp(engine_N.astype(np.float64))),
            tokens=_sums(depth_N, np.ones(len(depth_N))),
            largest=float(differences_N.max(initial=0.0)),
        )

    @property
    def mean(self) -> float:
        """The mean difference, in nats."""
        return float(self.differences.sum() / max(1.0, self.tokens.sum()))

    @property
    def noise(self) -> float:
        """The difference in relation to the uncertainty of the tokens."""
        return float(self.differences.sum() / max(1e-9, self._weights.sum()))

    @property
    def noise_by_depth(self) -> Sums:
        """The same by depth; 0 where there are too few tokens to tell."""
        enough = self.tokens >= FEWEST_TOKENS
        return np.where(enough, self.differences / np.maximum(self._weights, 1e-9), 0.0)

    @property
    def _weights(self) -> Sums:
        return self.uncertainty + _LEAST_UNCERTAINTY * self.tokens


@dataclass(frozen=True)
class Disagreement:
    """What is wrong between engine and trainer.

    Attributes:
        found, allowed: noise, or mean nats if the user set a tolerance.
        mean, largest: of the absolute differences, in nats.
        position: where in the sequences it begins to be too large; 0 if everywhere.
        tolerance: whether `allowed` is `rollout.logprobTolerance`.
    """

    found: float
    allowed: float
    mean: float
    largest: float
    position: int
    tolerance: bool


@dataclass(frozen=True)
class AgreementLimits:
    """What an update's samples must keep to: one of the two.

    Attributes:
        noise: the largest noise, over all tokens and at every depth.
        mean: the largest mean difference in nats, `rollout.logprobTolerance`.
    """

    noise: float | None = None
    mean: float | None = None

    def exceeded(self, agreement: Agreement) -> Disagreement | None:
        """Return what is too large, if anything is. A difference that is not a number is too large."""
        about = {"mean": agreement.mean, "largest": agreement.largest}
        if self.mean is not None:
            if agreement.mean <= self.mean:
                return None
            return Disagreement(agreement.mean, self.mean, position=0, tolerance=True, **about)
        assert self.noise is not None, "one of the two is set"
        if not agreement.noise <= self.noise:
            return Disagreement(agreement.noise, self.noise, position=0, tolerance=False, **about)
        for depth, noise in enumerate(agreement.noise_by_depth.tolist()):
            if not noise <= self.noise:
                start = _FIRST_DEPTH * 2 ** (depth - 1) if depth else 0
                return Disagreement(noise, self.noise, position=start, tolerance=False, **about)
        return None


def _sums(depth_N: Ints, values_N: Sums) -> Sums:
    return np.bincount(depth_N, values_N, DEPTHS).astype(np.float64)
