"""What the driver asks of the workers, and what they answer.

Nothing here imports torch: the driver is a light process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lorarl_trainer.samples.agreement import AgreementLimits, Disagreement
from lorarl_trainer.samples.arrays import Floats
from lorarl_trainer.samples.correction import Correction
from lorarl_trainer.samples.critic import CriticUpdate
from lorarl_trainer.samples.sample import Sample
from lorarl_trainer.samples.sampling import Sampling
from lorarl_trainer.samples.wire import Samples

type Policy = Literal["policy", "reference", "teacher"]
"""Whose log-probabilities: the trained policy's, those of the KL penalty's reference, or an adapter's that teaches."""
LOGPROB_DIFFERENCE = "mean_abs_logprob_diff"
"""The metric of how far engine and trainer are apart: only on-policy updates have it."""
MOST_LOG_RATIO = 5.0
"""Where the k3 estimate cuts log(q/p). It grows with q/p: without this, one token that the policy hardly ever draws may
have more gradient than all others together. verl and NeMo-RL cut the estimate, too."""


@dataclass(frozen=True)
class GenerationRequest:
    """One completion that is wanted. The engine generates it with others, whenever it is asked for.

    Attributes:
        tokens: the prompt, and after it what there is of the completion.
        asked_by: what it is for, as errors say it: in step 3.
        seed: of its random numbers; None takes the best token everywhere, and no log-probabilities.
        begun: for a completion that is made in rounds, how many of `tokens` are its own: it is continued, and handed
            over without them. Its random numbers are those that would have followed. None for one made at once.
        max_tokens: so many more at most. It never has more than the job's in all, which are the default.
        sampling: where tokens are drawn from; None for the job's.
        stop_token_ids: any of them ends it; None for the job's.
        stop: texts that end it; None for the job's.
        adapter: the version that is to generate it; None for the only one that the engine has.
        newer: a newer version than that may generate it too.
        server: the address of the one that is to generate it; None for any of them, and for the workers' engines.
    """

    tokens: Sequence[int]
    asked_by: str = "a request"
    seed: int | None = None
    begun: int | None = None
    max_tokens: int | None = None
    sampling: Sampling | None = None
    stop_token_ids: tuple[int, ...] | None = None
    stop: tuple[str, ...] | None = None
    adapter: int | None = None
    newer: bool = False
    server: str | None = None

    @property
    def prompt_length(self) -> int:
        """Number of prompt tokens."""
        return len(self.tokens) - (self.begun or 0)

    def may_be_by(self, version: int) -> bool:
        """Return whether an adapter version may generate it."""
        return self.adapter in (None, version) or (self.newer and version > self.adapter)


@dataclass(frozen=True)
class LossKind:
    """What the loop and the backends must know of a loss; `losses/` computes it.

    Attributes:
        by_advantage: it is zero for samples without advantages.
        of_pairs: two samples after each other are compared, with what the reference makes of them.
    """

    by_advantage: bool = False
    of_pairs: bool = False


LOSS_KINDS = {
    "policy_gradient": LossKind(by_advantage=True),
    "cross_entropy": LossKind(),
    "preference": LossKind(of_pairs=True),
}


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
            (CISPO, arXiv:2506.13585) and at `least_weight`. gated: a sigmoid takes the place of clipping (SAPO,
            arXiv:2511.20347).
        ratio: token: of each token. sequence: the geometric mean over the sample's tokens (GSPO, arXiv:2507.18071).
        gate: the temperatures of the gated surrogate, for positive advantages and for the others.
        aggregation: how the tokens' losses become one number, see `normalizer`.
        constant: tokens that a sample's summed loss is divided by, in the aggregation of this name.
        correction: for the difference between the engine's policy and the trainer's; None for none.
        beta, label_smoothing: of the loss of preferences.
        weighs_tokens: in cross_entropy, a sample's advantage is the weight of its tokens.
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
    least_weight: float = 0.0
    weighs_tokens: bool = False

    @property
    def about(self) -> LossKind:
        """What is known of its kind."""
        return LOSS_KINDS[self.kind]

    @property
    def by_sequence(self) -> bool:
        """Whether a token's loss depends on which sample it belongs to."""
        corrected = self.correction is not None and self.correction.by_sequence
        compared = self.about.of_pairs or self.ratio == "sequence"
        return corrected or compared or self.aggregation == "sequence_mean"

    @property
    def needs_reference(self) -> bool:
        """Whether it looks at the reference's log-probabilities."""
        return self.kl_coefficient > 0 or self.about.of_pairs

    def counted(self, tokens: int, samples: int) -> float:
        """Return how many things metrics are means over, given what all samples of an update have: tokens, or pairs."""
        return samples / 2 if self.about.of_pairs else tokens

    def has_gradient(self, sample: Sample) -> bool:
        """Return whether a sample can have a gradient: not if its loss is zero whatever the policy is."""
        return not self.about.by_advantage or self.kl_coefficient > 0 or bool(np.any(sample.advantage))

    def normalizer(self, tokens: int, samples: int) -> float:
        """Return what the summed loss of an update is divided by, given what all its samples have.

        token_mean: each token counts alike, or each pair. sequence_mean: each sample does; the loss (`losses`) has
        divided its tokens by their number already. constant: each sample's sum is divided by `constant`. So nothing but
        the sum needs to know all samples of the update. The samples of an episode count as one, with the tokens of all.
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
        seed: decides the dropout masks.
        limits: how well engine and trainer must agree about on-policy samples, which is checked before the update; None
            where nothing is generated.
        total_samples: of all workers, of which those of an episode count as one. Pairs and aggregations other than
            token_mean need it.
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
class AdamW:
    """The numbers of one optimizer step.

    Attributes:
        max_norm: the gradient is scaled down to this norm; infinity leaves it as it is.
    """

    learning_rate: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    max_norm: float


@dataclass(frozen=True)
class Accumulated:
    """What a pass over samples found whose gradient was added to those before.

    Attributes:
        logprobs: of each sample's trained tokens.
        sums: by metric, over all trained tokens; `loss` among them.
    """

    logprobs: Sequence[Floats]
    sums: Mapping[str, float]


@dataclass(frozen=True)
class UpdateResult:
    """What an update did.

    Attributes:
        metrics: by column of metrics.jsonl, over all workers' response tokens or pairs. The loss names its own
            (`losses/`); `loss` and `grad_norm` (before clipping, 0 if the update was withheld before its optimizer
            step) are always there. If one of them is not finite, no update was made.
        disagreement: set if the limits were exceeded: no update was made.
        seconds: forward_backward and optimizer, and sleep where vLLM gave up memory for it.
    """

    metrics: Mapping[str, float]
    disagreement: Disagreement | None
    seconds: Mapping[str, float]
    warnings: tuple[str, ...] = ()
