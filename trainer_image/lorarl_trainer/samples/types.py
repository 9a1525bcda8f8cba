"""What travels between the driver and the workers: completions, samples to train on, updates and their results.

Nothing here imports torch: the driver is a light process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lorarl_trainer.samples.agreement import AgreementLimits, Disagreement
from lorarl_trainer.samples.arrays import Bools, Floats, Ints
from lorarl_trainer.samples.correction import Correction
from lorarl_trainer.samples.critic import CriticUpdate
from lorarl_trainer.samples.occupancy import Occupancy
from lorarl_trainer.samples.routing import Routing

type Policy = Literal["policy", "reference", "teacher"]
"""Whose log-probabilities: the trained policy's, those of the KL penalty's reference, or an adapter's that teaches."""
LOGPROB_DIFFERENCE = "mean_abs_logprob_diff"
"""The metric of how far engine and trainer are apart: only on-policy updates have it."""
MOST_LOG_RATIO = 5.0
"""Where the k3 estimate cuts log(q/p). It grows with q/p: without this, one token that the policy hardly ever draws may
have more gradient than all others together. verl and NeMo-RL cut the estimate, too."""


@dataclass(frozen=True)
class Completion:
    """One generated sequence.

    Attributes:
        tokens: the response, with its end token if it has one, [T].
        logprobs: log-probability of each at the sampling temperature, in nats, [T]; empty for greedy ones.
        finished: it ended by itself; False if it was cut off at maxResponseTokens.
        adapter_version: the version that generated all of it.
        kept: how many tokens, the most probable ones, were possible in the place of each, [T]; None if all were.
        routing: the experts that each token was sent to, of the prompt and of all but the last of the response; None
            without experts.
    """

    tokens: Ints
    logprobs: Floats
    finished: bool
    adapter_version: int
    kept: Ints | None = None
    routing: Routing | None = None


@dataclass(frozen=True)
class Sample:
    """One sequence to train on.

    Attributes:
        tokens: prompt and response, [T].
        prompt_length: number of prompt tokens, 1 <= prompt_length < T.
        advantage: the weight of the response's tokens in the policy gradient: one for all, or one of each trained
            token, [T - prompt_length].
        rollout_logprobs: vLLM's log-probabilities of the response's tokens, [T - prompt_length]; None for sft.
        kept: see `Completion.kept`, [T - prompt_length]. All samples of an update have it, or none.
        old_logprobs: the trainer's at the beginning of the step, [T - prompt_length]; None where no loss needs them.
        mask: which of the response's tokens are trained, [T - prompt_length]; None for all. Arrays of numbers by token
            are of the trained ones, and so are log-probabilities.
        values, returns: what the critic expected at the beginning of the step before each token, and what it is to
            expect, [T - prompt_length] each; None without a critic.
        routing: see `Completion.routing`, [T - 1, layers, experts of a token]; None if the rollout's is not known.
        fresh: the newest adapter generated all of it, so engine and trainer must agree about it.
        pair: which preference pair of the update it belongs to; None for none. The chosen answer is followed by the
            rejected one, of the same prompt, and nothing separates the two: neither workers nor micro-batches.
    """

    tokens: Ints
    prompt_length: int
    advantage: float | Floats = 0.0
    rollout_logprobs: Floats | None = None
    kept: Ints | None = None
    old_logprobs: Floats | None = None
    pair: int | None = None
    mask: Bools | None = None
    values: Floats | None = None
    returns: Floats | None = None
    routing: Routing | None = None
    fresh: bool = True

    @classmethod
    def of(cls, prompt: Sequence[int], completion: Completion, *, fresh: bool = True) -> Sample:
        """Return a prompt with a completion of it, as the rollout made it."""
        return cls(
            tokens=np.concatenate([np.asarray(prompt), completion.tokens]),
            prompt_length=len(prompt),
            rollout_logprobs=completion.logprobs,
            kept=completion.kept,
            routing=completion.routing,
            fresh=fresh,
        )

    @property
    def response_length(self) -> int:
        """Number of tokens after the prompt."""
        return len(self.tokens) - self.prompt_length

    @property
    def trained_length(self) -> int:
        """Number of tokens that are trained."""
        return self.response_length if self.mask is None else int(self.mask.sum())

    def of_trained(self, values: Ints) -> Ints:
        """Return what belongs to trained tokens, of values of each of the response's tokens, [T - prompt_length]."""
        return values if self.mask is None else values[self.mask]


@dataclass(frozen=True)
class LossChoice:
    """Which per-token loss the trainer computes, and its constants.

    Attributes:
        kind: policy_gradient: a surrogate on the given advantages. cross_entropy: -log p. preference: of pairs, by the
            margin of their implicit rewards.
        clip_range: the probability ratio is clipped at 1 - clip_range from below; infinity clips nothing.
        kl_coefficient: weight of the estimate of KL(policy || reference) added to each token's loss; 0 for none.
        clip_range_high: the ratio is clipped at 1 + clip_range_high from above; None is the same as clip_range.
        surrogate: clipped: PPO's (arXiv:1707.06347). weighted: the ratio is a weight without a gradient, cut from above
            alone (CISPO, arXiv:2506.13585). gated: a sigmoid takes the place of clipping (SAPO, arXiv:2511.20347).
        ratio: token: of each token. sequence: the geometric mean over the sample's tokens (GSPO, arXiv:2507.18071).
        gate: the temperatures of the gated surrogate, for positive advantages and for the others.
        aggregation: how the tokens' losses become one number, see `normalizer`.
        constant: tokens that a sample's summed loss is divided by, in the aggregation of this name.
        kl_estimator: of the KL penalty.
        correction: for the difference between the engine's policy and the trainer's; None for none.
        beta, label_smoothing: of the loss of preferences.
    """

    kind: Literal["policy_gradient", "cross_entropy", "preference"]
    clip_range: float = 0.0
    kl_coefficient: float = 0.0
    clip_range_high: float | None = None
    surrogate: Literal["clipped", "weighted", "gated"] = "clipped"
    ratio: Literal["token", "sequence"] = "token"
    gate: tuple[float, float] = (1.0, 1.0)
    aggregation: Literal["token_mean", "sequence_mean", "constant"] = "token_mean"
    constant: float = 1.0
    kl_estimator: Literal["k2", "k3"] = "k3"
    correction: Correction | None = None
    beta: float = 0.1
    label_smoothing: float = 0.0

    @property
    def by_sequence(self) -> bool:
        """Whether a token's loss depends on which sample it belongs to."""
        corrected = self.correction is not None and self.correction.by_sequence
        compared = self.kind == "preference" or self.ratio == "sequence"
        return corrected or compared or self.aggregation == "sequence_mean"

    @property
    def needs_reference(self) -> bool:
        """Whether it looks at the reference's log-probabilities."""
        return self.kl_coefficient > 0 or self.kind == "preference"

    def counted(self, tokens: int, samples: int) -> float:
        """Return how many things metrics are means over, given what all samples of an update have: tokens, or pairs."""
        return samples / 2 if self.kind == "preference" else tokens

    def has_gradient(self, sample: Sample) -> bool:
        """Return whether a sample can have a gradient: not if its loss is zero whatever the policy is."""
        return self.kind != "policy_gradient" or self.kl_coefficient > 0 or bool(np.any(sample.advantage))

    def normalizer(self, tokens: int, samples: int) -> float:
        """Return what the summed loss of an update is divided by, given what all its samples have.

        token_mean: each token counts alike, or each pair. sequence_mean: each sample does; the loss (`losses`) has
        divided its tokens by their number already. constant: each sample's sum is divided by `constant`. So nothing but
        the sum needs to know all samples of the update.
        """
        if self.aggregation == "token_mean":
            return self.counted(tokens, samples)
        return samples if self.aggregation == "sequence_mean" else samples * self.constant


@dataclass(frozen=True)
class UpdateRequest:
    """One optimizer update: this worker's samples, and what holds over all workers.

    Attributes:
        samples: this data-parallel worker's share.
        temperature: divides the logits before log-probabilities are taken.
        on_policy: the adapter has not changed since the samples were generated, so engine and trainer must agree.
        total_tokens: response tokens of all workers' samples: metrics are their means.
        learning_rate: this update's.
        seed: decides the dropout masks.
        limits: how well engine and trainer must agree about on-policy samples, which is checked before the update; None
            where nothing is generated.
        total_samples: of all workers. Pairs and aggregations other than token_mean need it.
        critic: the critic's update on the same samples; None without a critic.
    """

    samples: Samples
    loss: LossChoice
    temperature: float
    on_policy: bool
    total_tokens: int
    learning_rate: float
    seed: int
    limits: AgreementLimits | None
    total_samples: int = 0
    critic: CriticUpdate | None = None

    @property
    def trains_policy(self) -> bool:
        """Whether the policy changes; otherwise its loss is measured only."""
        return self.critic is None or not self.critic.alone

    @property
    def normalizer(self) -> float:
        """What the summed loss is divided by."""
        return self.loss.normalizer(self.total_tokens, self.total_samples)


@dataclass(frozen=True)
class UpdateResult:
    """What an update did.

    Attributes:
        metrics: by column of metrics.jsonl, over all workers' response tokens or pairs. The loss names its own
            (`losses/`); `loss` and `grad_norm` (before clipping, 0 if the update was withheld before its optimizer
            step) are always there. If one of them is not finite, no update was made.
        disagreement: set if the limits were exceeded: no update was made.
        seconds: forward_backward and optimizer, and sleep where vLLM gave up memory for it.
        warnings: for the user.
    """

    metrics: Mapping[str, float]
    disagreement: Disagreement | None
    seconds: Mapping[str, float]
    warnings: tuple[str, ...] = ()


class Completions(tuple[Completion, ...]):
    """Completions that travel as a few flat arrays.

    Pickling hundreds of small arrays takes longer than a small model's step.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel flat."""
        versions = np.array([c.adapter_version for c in self])
        finished = np.array([c.finished for c in self], dtype=bool)
        kept = [c.kept for c in self if c.kept is not None]
        routing = [c.routing for c in self if c.routing is not None]
        return _completions, (
            *_flat([c.tokens for c in self]),
            *_flat([c.logprobs for c in self]),
            finished,
            versions,
            _flat(kept)[0] if kept else None,
            *(_flat(routing) if routing else (None, None)),
        )


class Samples(tuple[Sample, ...]):
    """Samples that travel as a few flat arrays."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel flat."""
        prompts = np.array([s.prompt_length for s in self])
        by_token = any(isinstance(s.advantage, np.ndarray) for s in self)
        advantages = [np.broadcast_to(s.advantage, s.trained_length if by_token else 1) for s in self]
        rollouts = [s.rollout_logprobs for s in self if s.rollout_logprobs is not None]
        kept = [s.kept for s in self if s.kept is not None]
        old = [s.old_logprobs for s in self if s.old_logprobs is not None]
        pairs = [s.pair for s in self if s.pair is not None]
        values = [s.values for s in self if s.values is not None]
        returns = [s.returns for s in self if s.returns is not None]
        routing = [s.routing for s in self if s.routing is not None]
        return _samples, (
            *_flat([s.tokens for s in self]),
            prompts,
            *_flat(advantages),
            *(_flat(rollouts) if rollouts else (None, None)),
            _flat(kept)[0] if kept else None,
            _flat(old)[0] if old else None,
            np.array(pairs) if pairs else None,
            _flat(_masks(self))[0] if any(s.mask is not None for s in self) else None,
            _flat(values)[0] if values else None,
            _flat(returns)[0] if returns else None,
            _flat(routing)[0] if routing else None,
            None if all(s.fresh for s in self) else np.array([s.fresh for s in self]),
        )


@dataclass(frozen=True)
class CompletionChunk:
    """Completions that ended about the same time, handed over while others are still being generated.

    Attributes:
        indices: of their prompts among those that were asked for.
        completions: in the order of `indices`.
        seconds: by phase since generation began; those of the last chunk are the whole generation's.
        occupancy: of the engine since then.
    """

    indices: Sequence[int]
    completions: Completions
    seconds: Mapping[str, float]
    occupancy: Occupancy


def _completions(
    tokens: Ints,
    lengths: Ints,
    logprobs: Floats,
    counts: Ints,
    finished: Any,
    versions: Ints,
    kept: Ints | None,
    routing: Routing | None,
    routed: Ints | None,
) -> Completions:
    parts = zip(
        *(_split(tokens, lengths), _split(logprobs, counts), finished.tolist(), versions.tolist()),
        [None] * len(lengths) if kept is None else _split(kept, lengths),
        [None] * len(lengths) if routing is None else _split(routing, routed),
        strict=True,
    )
    return Completions(Completion(*part) for part in parts)


def _samples(
    tokens: Ints,
    lengths: Ints,
    prompts: Ints,
    advantages: Floats,
    weighed: Ints,
    rollouts: Floats | None,
    counts: Ints | None,
    kept: Ints | None,
    old: Floats | None,
    pairs: Ints | None,
    masks: Bools | None,
    values: Floats | None,
    returns: Floats | None,
    routing: Routing | None,
    fresh: Bools | None,
) -> Samples:
    none = [None] * len(lengths)
    possible = none if kept is None else _split(kept, lengths - prompts)
    logprobs = none if rollouts is None or counts is None else _split(rollouts, counts)
    before, expected, found = (none if of is None else _split(of, lengths - prompts) for of in (old, values, returns))
    pair = none if pairs is None else pairs.tolist()
    mask = none if masks is None else _split(masks, lengths - prompts)
    # One advantage of a sample is a number again: many small arrays would cost more than all else.
    one_each = len(advantages) == len(lengths)
    weights = advantages.tolist() if one_each else _split(advantages, weighed)
    columns = (
        _split(tokens, lengths),
        prompts.tolist(),
        weights,
        logprobs,
        possible,
        before,
        pair,
        mask,
        expected,
        found,
        none if routing is None else _split(routing, lengths - 1),
        [True] * len(lengths) if fresh is None else fresh.tolist(),
    )
    return Samples(Sample(*part) for part in zip(*columns, strict=True))


def _masks(samples: Sequence[Sample]) -> list[Bools]:
    return [np.ones(s.response_length, np.bool_) if s.mask is None else s.mask for s in samples]


def _flat(arrays: Sequence[Any]) -> tuple[Any, Any]:
    """Return the arrays joined, and their lengths."""
    return np.concatenate(arrays) if arrays else np.empty(0), np.array([len(array) for array in arrays], dtype=np.int64)


def _split(flat: Any, lengths: Any) -> list[Any]:
    ends = np.cumsum(lengths).tolist()
    return [flat[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)]
