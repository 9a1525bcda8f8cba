"""The groups of `spec.algorithm`: options of one type each, the KL penalty, and the off-policy correction."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from lorarl_api.rules import Rule
from lorarl_api.v1alpha1.common import Model, Uri, uri_rules
from lorarl_api.v1alpha1.scoring import ApiServer, retries_field
from lorarl_api.v1alpha1.stores import READABLE


class GrpoSpec(Model):
    """Options of the type grpo."""

    scale_by_std: bool = Field(
        True,
        description="Divide a group's advantages by the standard deviation of its rewards. Without it, prompts that "
        "are almost always or almost never answered well weigh less (arXiv:2503.20783).",
    )


class DapoSpec(Model):
    """Options of the type dapo (arXiv:2503.14476). `clipRange` is the range below 1."""

    clip_range_high: float = Field(
        0.28,
        gt=0.0,
        lt=10.0,
        description="The probability ratio is clipped to 1 - clipRange .. 1 + clipRangeHigh (clip-higher).",
    )
    max_refills: int = Field(
        3,
        ge=0,
        le=100,
        description="Dynamic sampling: how many times per step more prompts are generated for, in place of groups "
        "whose completions all have the same reward. If groups are still missing after that, the step trains fewer. "
        "0 replaces none.",
    )
    overlong_buffer_tokens: int | None = Field(
        None,
        ge=1,
        le=1_048_576,
        description="The penalty on length grows over the last so many tokens before rollout.maxResponseTokens "
        "(soft overlong punishment). The paper uses a fifth of the limit. Default: no penalty.",
        examples=[256],
    )
    overlong_penalty: float = Field(
        1.0,
        gt=0.0,
        le=1e6,
        description="What a completion of rollout.maxResponseTokens loses of its reward. It applies if "
        "overlongBufferTokens is set.",
    )


class GspoSpec(Model):
    """Options of the type gspo (arXiv:2507.18071). Its ratio is a whole completion's, so its ranges are small."""

    clip_range_low: float = Field(
        3e-4, gt=0.0, lt=1.0, description="The completion's ratio is clipped at 1 - clipRangeLow from below."
    )
    clip_range_high: float = Field(
        4e-4, gt=0.0, lt=10.0, description="The completion's ratio is clipped at 1 + clipRangeHigh from above."
    )


class CispoSpec(Model):
    """Options of the type cispo (arXiv:2506.13585)."""

    max_weight: float = Field(
        5.0,
        ge=1.0,
        le=1000.0,
        description="Largest importance weight of a token. Larger ones are cut to it, and the token still trains. "
        "4 to 8 work alike (arXiv:2510.13786).",
    )


class SapoSpec(Model):
    """Options of the type sapo (arXiv:2511.20347)."""

    positive_temperature: float = Field(
        1.0, gt=0.0, le=100.0, description="Steepness of the soft gate for tokens with a positive advantage."
    )
    negative_temperature: float = Field(
        1.05,
        gt=0.0,
        le=100.0,
        description="Steepness of the soft gate for the other tokens. A larger one is more careful with them.",
    )


class PpoSpec(Model):
    """Options of the type ppo (arXiv:1707.06347): the critic, a second adapter on the same base, and its advantages."""

    gamma: float = Field(
        1.0,
        gt=0.0,
        le=1.0,
        description="Discount per token. Below 1, an answer is worth less the longer it is.",
    )
    gae_lambda: float = Field(
        1.0,
        ge=0.0,
        le=1.0,
        description="How far an advantage looks (GAE, arXiv:1506.02438). 1: to the reward itself, without the critic's "
        "bias. Less: more of what the critic expects after the token, with less noise.",
        examples=[0.95],
    )
    critic_learning_rate: float | None = Field(
        None,
        gt=0.0,
        le=1.0,
        description="Peak learning rate of the critic, with the schedule of trainer. Default: trainer.learningRate.",
        examples=[1e-4],
    )
    value_clip_range: float = Field(
        0.5,
        gt=0.0,
        le=1e6,
        description="A value that has moved by more than this within a step does not learn further in its direction. "
        "It is in units of the reward, and matters if updatesPerStep is above 1.",
    )
    critic_warmup_steps: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="First steps in which only the critic learns, so that the policy does not follow a critic that "
        "knows nothing yet. The policy's learning rate schedule and a kl.target begin after them.",
        examples=[10],
    )


class TeacherServer(ApiServer):
    """A teacher behind an OpenAI-compatible API that returns the log-probabilities of a prompt's tokens (/completions).

    It is asked with token ids, so it must have the base model's tokenizer. That is checked with every answer.
    """

    url: Uri = Field(
        description="Address of the API: http(s)://HOST/v1, to which /completions is added.",
        examples=["http://teacher:8000/v1"],
    )
    retries: int = retries_field("timeoutSeconds", "log-probabilities")
    timeout_seconds: float = Field(60.0, gt=0.0, le=3600.0, description="Longest time of one request, in seconds.")
    max_failed_share: float = Field(
        1.0,
        ge=0.0,
        le=1.0,
        description="Largest share of a step's completions that may be left out because the teacher did not score "
        "them. If more are, the run stops and names the most common failure. With 1, only a step without any score "
        "stops it.",
        examples=[0.1],
    )


class DistillationSpec(Model):
    """The teacher of the type distillation. Set exactly one of adapter and server."""

    adapter: Uri | None = Field(
        None,
        description="Folder of a PEFT LoRA adapter of the same base model, as for adapter.initFrom: the teacher is the "
        "base with this adapter. No second model is loaded. It has the job's modules and at most its rank, and is read "
        "with the same credentials.",
        examples=["s3://team/adapters/earlier/iter_0000100/lora_adapter"],
    )
    server: TeacherServer | None = Field(
        None, description="Any model with the same tokenizer, behind a server such as vLLM's."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "adapter",
            "has(self.adapter) != has(self.server)",
            "be set if server is not, and only then",
            "Name the teacher: an adapter of the same base model, or a server.",
        ),
        *uri_rules("adapter", READABLE, optional=True, secret="checkpoint.credentialsSecret"),
    )


class DpoSpec(Model):
    """Options of the type dpo (arXiv:2305.18290)."""

    beta: float = Field(
        0.1,
        gt=0.0,
        le=100.0,
        description="How strongly the policy is kept near its reference: a smaller one lets it move further. The "
        "paper has 0.1, and 0.5 for summaries. Answers of a few tokens need more, such as 3.",
    )
    label_smoothing: float = Field(
        0.0,
        ge=0.0,
        lt=0.5,
        description="Share of the pairs that is taken to be labelled the wrong way round (conservative DPO; E. "
        "Mitchell, 2023).",
        examples=[0.1],
    )


class KlSpec(Model):
    """The KL penalty whose weight is `klCoefficient`."""

    placement: Literal["loss", "reward"] = Field(
        "loss",
        description="loss: added to each token's loss. reward: subtracted from a completion's reward, summed over its "
        "tokens, before advantages are computed. That takes another forward pass.",
    )
    estimator: Literal["k1", "k2", "k3"] | None = Field(
        None,
        description="How the divergence is estimated from a sampled token, with d = log p(policy) - log p(reference) "
        "(J. Schulman, 2020). k1: d. k2: d squared over 2. k3: exp(-d) - 1 + d. Default: k3 in the loss, k1 in the "
        "reward.",
        examples=["k3"],
    )
    reference: Literal["base", "start", "average"] = Field(
        "base",
        description="base: the base model. start: the base model with the adapter of adapter.initFrom, such as that "
        "of a supervised training. average: an exponential moving average of the adapter's parameters, which follows "
        "the policy.",
    )
    decay: float | None = Field(
        None,
        ge=0.0,
        lt=1.0,
        description="average: the share of the average that each update keeps; it looks back over about "
        "1 / (1 - decay) updates. Default: 0.99.",
        examples=[0.99],
    )
    target: float | None = Field(
        None,
        gt=0.0,
        le=100.0,
        description="Divergence to keep, as the metric kl: nats per token. After each step klCoefficient rises by up "
        "to 2% if the divergence is larger, and falls by up to 2% if it is smaller (arXiv:1909.08593, section 2.2). "
        "Default: klCoefficient is fixed.",
        examples=[0.01],
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "estimator",
            "!has(self.estimator) || self.estimator != 'k1' || self.placement == 'reward'",
            "be k2 or k3 if placement is loss, since the expected gradient of k1 is zero",
            "Use k3, or set placement to reward.",
        ),
        Rule(
            "decay",
            "!has(self.decay) || self.reference == 'average'",
            "not be set unless reference is average",
            "Remove decay, or set reference to average.",
        ),
    )

    @property
    def effective_decay(self) -> float:
        """The share of the average that an update keeps."""
        return 0.99 if self.decay is None else self.decay


CorrectionPreset = Literal[
    "decoupled_token_is", "decoupled_seq_is", "decoupled_seq_is_rs", "decoupled_geo_rs", "decoupled_geo_rs_token_tis"
]


def _only_beside(kind: str, limit: str, default: str) -> Rule:
    """A limit of weights or of a mask. The API server writes defaults, so only another value is seen."""
    return Rule(
        limit,
        f"has(self.{kind}) || self.{limit} == {default}",
        f"be absent without {kind}",
        f"Set {kind}, or remove {limit}.",
    )


class CorrectionSpec(Model):
    """Correction for the difference between the engine's policy and the one that is trained. Set a preset, or fields.

    The ratio of a token is the trainer's probability at the beginning of the step over the engine's.
    """

    preset: CorrectionPreset | None = Field(
        None,
        description="What verl calls so. decoupled_token_is: weights of tokens up to 2. decoupled_seq_is: weights of "
        "sequences up to 2. decoupled_seq_is_rs: the same, and only sequences with ratios from 0.5 to 2 train. "
        "decoupled_geo_rs: only sequences whose mean ratio is within 0.1% of 1 train. decoupled_geo_rs_token_tis: "
        "the same with weights of tokens up to 2.",
        examples=["decoupled_token_is"],
    )
    weights: Literal["token", "sequence"] | None = Field(
        None,
        description="Truncated importance sampling: each token's loss is multiplied by its own ratio, or by the "
        "product of its completion's ratios. Default: no weights.",
        examples=["token"],
    )
    max_weight: float = Field(
        2.0, ge=1.0, le=1000.0, description="Weights above are cut to this. It applies if weights is set."
    )
    mask: Literal["token", "sequence", "geometric"] | None = Field(
        None,
        description="Masked importance sampling: tokens outside of maskLow .. maskHigh do not train, neither by "
        "their advantage nor by a KL penalty in the loss. token: by their own ratio. sequence: by the product of the "
        "completion's ratios. geometric: by their geometric mean. Default: no mask.",
        examples=["geometric"],
    )
    mask_low: float = Field(0.5, ge=0.0, lt=1.0, description="Least ratio that trains. It applies if mask is set.")
    mask_high: float = Field(
        2.0, gt=1.0, le=1000.0, description="Largest ratio that trains. It applies if mask is set."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "preset",
            "has(self.preset) != (has(self.weights) || has(self.mask))",
            "be set if there are neither weights nor mask, and only then",
            "Set a preset such as decoupled_token_is, or weights or mask.",
        ),
        _only_beside("weights", "maxWeight", "2.0"),
        _only_beside("mask", "maskLow", "0.5"),
        _only_beside("mask", "maskHigh", "2.0"),
    )
