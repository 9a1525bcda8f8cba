"""The frozen base model and the LoRA adapter that is trained."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from lorarl_api.rules import Rule
from lorarl_api.v1alpha1.common import Model, SecretName, Uri, uri_rules
from lorarl_api.v1alpha1.stores import READABLE

SERVED_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values that vLLM accepts for the largest rank that it serves (`max_lora_rank`)."""
MAX_LORA_RANK = SERVED_RANKS[-1]
"""The largest rank that vLLM serves (`max_lora_rank`)."""

Quantization = Literal["none", "fp8", "nf4"]
ModulePattern = Annotated[
    str,
    Field(
        min_length=1,
        max_length=256,
        pattern=r"^[A-Za-z0-9_.*?\[\]-]+$",
        examples=["q_proj"],
        json_schema_extra={"expected": "the name of a module or a wildcard: letters, digits, _ . - * ? [ ]"},
    ),
]


class BaseModelSpec(Model):
    """The frozen base model."""

    uri: Uri = Field(
        description="Location of the base model, in Hugging Face format: hf://ORG/NAME; s3://, gs:// or az:// with a "
        "folder; pvc://CLAIM/FOLDER, on a PersistentVolumeClaim that all pods can mount; file:///FOLDER, or "
        "file:FOLDER (relative to the folder in which `lorarl run` starts).",
        examples=["hf://Qwen/Qwen2.5-0.5B-Instruct"],
    )
    revision: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="Branch, tag or commit of an hf:// model. Default: main.",
        examples=["main"],
    )
    credentials_secret: SecretName | None = Field(
        None,
        description="Name of a Secret whose keys give access to the model: HF_TOKEN for hf://, otherwise the store's "
        "own names (AWS_ACCESS_KEY_ID, ...). `lorarl run` reads it from the folder $LORARL_SECRETS_DIR/NAME, one "
        "file per key.",
    )
    quantization: Quantization = Field(
        "none",
        description="How trainer and engine hold the weights of the decoder's linear layers. fp8: e4m3, one byte a "
        "weight, with one scale for each output channel. nf4: 4-bit NormalFloat, half a byte a weight, with one scale "
        "for 64 weights; the base differs more from its files. Either is made of the model's files as they are read; "
        "embeddings, norms and output layer keep trainer.precision, in which everything is computed. For "
        "trainer.backend fsdp, which is the default then.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        *uri_rules("uri", READABLE),
        Rule(
            "revision",
            "!has(self.revision) || self.uri.startsWith('hf://')",
            "not be set unless uri is an hf:// model",
            "Remove revision, and put the version into the URI's path.",
        ),
    )


def served_rank(rank: int) -> int:
    """Return the `max_lora_rank` with which vLLM serves adapters of this rank."""
    return next(served for served in SERVED_RANKS if served >= rank)


class AdapterSpec(Model):
    """The LoRA adapter that is trained. Only its parameters change."""

    type: Literal["canonical_lora", "lora"] = Field(
        "canonical_lora",
        description="canonical_lora: a separate adapter for each of q, k, v, gate and up, as in PEFT. "
        "lora: one adapter for the fused QKV and one for the fused gate and up, each with a shared A.",
        json_schema_extra={
            "hint": "Use canonical_lora or lora. For DoRA, rsLoRA or a quantized base, set adapter.dora: true, "
            "adapter.rslora: true or model.quantization: nf4 beside it."
        },
    )
    rank: int = Field(
        32,
        ge=1,
        le=MAX_LORA_RANK,
        description="Rank r of the adapter. vLLM serves at most 512.",
        json_schema_extra={"hint": "Use a rank such as 32: lorarl trains adapters only."},
    )
    expert_rank: int | None = Field(
        None,
        ge=1,
        le=MAX_LORA_RANK,
        description="Rank of the adapter on each expert's gate, up and down, for a mixture of experts. It has the same "
        "scaling as the others. At most rank. Default: rank times the share of a layer's experts that a token is sent "
        "to, at least 1.",
    )
    experts: Literal["perExpert", "sharedOuter"] = Field(
        "perExpert",
        description="For mixtures of experts. perExpert: each expert has its own A and B of gate, up and down. "
        "sharedOuter: the experts of a layer share the matrices on the side of the hidden state, A of gate and of up "
        "and B of down. That makes the adapter and its optimizer's state smaller. All experts of a layer must have an "
        "adapter.",
    )
    alpha: int = Field(
        64,
        ge=1,
        le=8192,
        description="Numerator of the scaling alpha / rank, or alpha / sqrt(rank) with rslora. Usually the rank or "
        "twice the rank.",
    )
    rslora: bool = Field(
        False,
        description="rsLoRA: scale by alpha / sqrt(rank), so that large ranks learn as fast as small ones. "
        "adapter_config.json says so (use_rslora), and PEFT and vLLM follow it.",
    )
    dora: bool = Field(
        False,
        description="DoRA: the lengths of the adapted weights' rows are trained too. For algorithm.type sft, and "
        "trainer.backend fsdp, which is the default then. vLLM serves no DoRA: merge the adapter with lorarl merge.",
    )
    dropout: float = Field(
        0.0,
        ge=0.0,
        lt=1.0,
        description="Dropout probability before the low-rank projection during training. Log-probabilities are "
        "compared without dropout.",
    )
    target_modules: list[ModulePattern] = Field(
        min_length=1,
        max_length=64,
        description="The linear layers that get an adapter: [all-linear] (all linear layers of the decoder, found in "
        "the model, but never lm_head or a router), Hugging Face names (q_proj), Megatron names (linear_proj), the "
        "end of a full name (self_attn.q_proj), or wildcards over full names (*.layers.0.*). A name that no layer "
        "has is refused.",
        examples=[["all-linear"]],
    )
    exclude_modules: list[ModulePattern] = Field(
        default_factory=list,
        max_length=64,
        description="Layers of targetModules that get no adapter, with the same names and wildcards. lm_head, "
        "embed_tokens, norms and routers may be named too: they never get one.",
    )
    init_from: Uri | None = Field(
        None,
        description="Folder of a PEFT LoRA adapter to start from (hf://ORG/NAME, s3://, gs://, az://, "
        "pvc://CLAIM/FOLDER, file:///FOLDER or file:FOLDER). It must be plain LoRA, and its base model and modules "
        "must match. Its rank may be smaller: it is padded, and computes the same. If the rank is the same, alpha must "
        "be too. It is read with checkpoint.credentialsSecret, or from the hub with HF_TOKEN of "
        "model.credentialsSecret. Default: a new adapter.",
        examples=["s3://team/adapters/earlier/iter_0000100/lora_adapter"],
    )

    @property
    def shares_outer(self) -> bool:
        """Whether the experts of a layer share the matrices on the side of the hidden state."""
        return self.experts == "sharedOuter"

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "targetModules",
            "!('all-linear' in self.targetModules) || size(self.targetModules) == 1",
            "contain no other module beside all-linear",
            "Write [all-linear] and exclude modules with excludeModules, or list the modules without all-linear.",
        ),
        Rule(
            "expertRank",
            "!has(self.expertRank) || self.expertRank <= self.rank",
            "be at most rank, which serving reserves for every layer",
            "Lower expertRank, or raise rank.",
        ),
        Rule(
            "excludeModules",
            "!('all-linear' in self.excludeModules)",
            "not contain all-linear, which would leave nothing to train",
            "Name the modules to exclude.",
        ),
        Rule(
            "excludeModules",
            "!self.targetModules.exists(m, m in self.excludeModules)",
            "not contain a name that is also in targetModules",
            "Remove the name from one of the two lists.",
        ),
        *uri_rules("initFrom", READABLE, optional=True, secret="checkpoint.credentialsSecret"),
    )
