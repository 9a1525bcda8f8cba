"""How far apart the engine's and the trainer's log-probabilities of the same tokens are, and how far apart is normal.

Both compute the same policy with their own kernels, which round differently. How much that shows depends on the
model, its precision, the parallel layout and the temperature. So no number is fixed here: the noise of the base model
is measured when a run starts, and every step is compared with it.

Rounding moves logits. If a logit moves, log p of a sampled token moves by about (1 - p) times as much: not at all where
the policy is certain. So there are two measures: the mean difference, and the sum of differences over the sum of
(1 - p), here called noise. As a policy becomes certain, the mean falls, and its larger logits have more noise; as it
becomes uncertain, the mean rises, and the noise stays. A step is normal if one of the two is. The measurements are in
benchmarks/results/agreement-2026-11-23.md. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lorarl_trainer.samples.arrays import Floats, Ints, Sums
from lorarl_trainer.samples.sample import Sample

DEPTHS = 12
"""Buckets of positions: up to 512 tokens into a sequence, up to 1,024, up to 2,048, and so on."""
_FIRST_DEPTH = 512
FEWEST_TOKENS = 64
"""A bucket with fewer tokens than this is not judged by itself: their mean is too uncertain."""
_LEAST_UNCERTAINTY = 0.01
"""Per token of a step, at the least, so that noise is defined for a policy that is certain of every token."""
TIMES_NORMAL = 3.0
"""A step's difference may be this many times the base's at the start. In healthy runs it is 0.7 to 1.5 times that."""


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

    @classmethod
    def of_samples(cls, samples: Sequence[Sample], scores_N: Floats) -> Agreement:
        """Compare the engine's log-probabilities, which the samples carry, with the trainer's."""
        engine = [sample.rollout_logprobs for sample in samples if sample.rollout_logprobs is not None]
        positions = positions_of([s.prompt_length for s in samples], [s.response_length for s in samples])
        return cls.of(np.concatenate(engine), scores_N, positions)

    @property
    def mean(self) -> float:
        """The mean difference, in nats."""
        return _ratio(self.differences.sum(), self.tokens.sum())

    @property
    def noise(self) -> float:
        """The difference in relation to the uncertainty of the tokens."""
        return _ratio(self.differences.sum(), max(self.uncertainty.sum(), _LEAST_UNCERTAINTY * self.tokens.sum()))

    def by_depth(self) -> Iterator[tuple[int, Agreement]]:
        """Yield the parts that are deep in their sequences and have enough tokens, and where each begins."""
        for depth in range(1, DEPTHS):
            if self.tokens[depth] >= FEWEST_TOKENS:
                here = np.arange(DEPTHS) == depth
                part = Agreement(self.differences * here, self.uncertainty * here, self.tokens * here, self.largest)
                yield _FIRST_DEPTH * 2 ** (depth - 1), part


@dataclass(frozen=True)
class Disagreement:
    """What is wrong between engine and trainer.

    Attributes:
        mean, largest: of the absolute differences, in nats.
        times: how many times what was allowed.
        tolerance: `rollout.logprobTolerance`, if that was exceeded; otherwise what is normal was.
        position: where in the sequences the difference begins to be too large; 0 if everywhere.
    """

    mean: float
    largest: float
    times: float
    tolerance: float | None = None
    position: int = 0


@dataclass(frozen=True)
class AgreementLimits:
    """What an update's samples must keep to.

    Attributes:
        mean, noise: one of the two must be kept, over all tokens and at every depth.
        tolerance: if given, the largest mean difference in nats, in place of both.
    """

    mean: float = 0.0
    noise: float = 0.0
    tolerance: float | None = None

    @classmethod
    def from_base(cls, base: Agreement, least: float = 0.0) -> AgreementLimits:
        """Return what is normal where the base model's difference is this.

        The base's uncertainty is taken as it is: a base that is nearly certain of its tokens shows little difference,
        and later steps, which are less certain, show more. `least` is the noise that the precision has at the least.
        """
        noise = _ratio(base.differences.sum(), base.uncertainty.sum())
        return cls(TIMES_NORMAL * base.mean, TIMES_NORMAL * max(least, noise))

    def for_probe(self, rounding: float) -> AgreementLimits:
        """Return what a probe must keep to, of whose effect on log-probabilities so many nats may be lost to rounding.

        A base that is nearly sure of all its tokens hardly shows any noise, and a probe makes it show.
        """
        return replace(self, mean=max(self.mean, rounding))

    def after_probe(self, probed: Agreement, scale: float = 1.0) -> AgreementLimits:
        """Return what is normal if a probe, which is right, shows so much: so much noise may any adapter bring.

        `scale` is how many times larger the noise is at the temperature of these limits than at the probe's.
        """
        return replace(self, noise=max(self.noise, TIMES_NORMAL * probed.noise * scale))

    def exceeded(self, agreement: Agreement) -> Disagreement | None:
        """Return what is too large, if anything is. A difference that is not a number is too large."""
        about = agreement.mean, agreement.largest
        if self.tolerance is not None:
            times = _ratio(agreement.mean, self.tolerance)
            return None if times <= 1.0 else Disagreement(*about, times, self.tolerance)
        for position, part in ((0, agreement), *agreement.by_depth()):
            times = min(_ratio(part.mean, self.mean), _ratio(part.noise, self.noise))
            if not times <= 1.0:
                return Disagreement(*about, times, position=position)
        return None


def _ratio(value: float, unit: float) -> float:
    return float(value / max(unit, 1e-9))


def _sums(depth_N: Ints, values_N: Sums) -> Sums:
    return np.bincount(depth_N, values_N, DEPTHS).astype(np.float64)
