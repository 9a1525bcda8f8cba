"""What is trained: the frozen base model and its LoRA adapter."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from lorarl_api.rules import Rule
from lorarl_api.v1alpha1.common import Model, SecretName, Uri, uri_rules

SERVED_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes for the largest rank that it is to serve (`max_lora_rank`)."""
MAX_LORA_RANK = SERVED_RANKS[-1]
"""The largest rank that vLLM serves (`max_lora_rank`)."""

ModulePattern = Annotated[
    str,
    Field(
        min_length=1,
        max_length=256,
        pattern=r"^[A-Za-z0-9_.*?\[\]-]+$",
        examples=["q_proj"],
        json_schema_extra={"expected": "a module's name or a wildcard: letters, digits, _ . - * ? [ ]"},
    ),
]


class BaseModelSpec(Model):
    """The frozen base model."""

    uri: Uri = Field(
        description="Where the base model lies, in Hugging Face format: hf://ORG/NAME; s3://, gs:// or az:// with a folder; "
        "pvc://CLAIM/FOLDER, on a PersistentVolumeClaim that all pods can mount; file:///FOLDER, or file:FOLDER (relative to where "
        "`lorarl run` is started).",
        examples=["hf://Qwen/Qwen2.5-0.5B-Instruct"],
    )
    revision: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="Branch, tag or commit of an hf:// model; the hub's main when absent.",
        examples=["main"],
    )
    credentials_secret: SecretName | None = Field(
        None,
        description="Name of a Secret whose keys give access to the model: HF_TOKEN for hf://, the store's own names otherwise "
        "(AWS_ACCESS_KEY_ID, ...). `lorarl run` reads it from the folder $LORARL_SECRETS_DIR/NAME, one file a key.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        *uri_rules("uri", ["hf", "s3", "gs", "az", "pvc", "file"]),
        Rule(
            "revision",
            "!has(self.revision) || self.uri.startsWith('hf://')",
            "a revision only with an hf:// model",
            "remove revision, and name the version in the URI's path",
        ),
    )


def served_rank(rank: int) -> int:
    """Return what to tell vLLM so that it serves adapters of this rank."""
    return next(served for served in SERVED_RANKS if served >= rank)


class AdapterSpec(Model):
    """The LoRA adapter that is trained. Only its parameters change."""

    type: Literal["canonical_lora", "lora"] = Field(
        "canonical_lora",
        description="canonical_lora: an adapter for each of q, k, v, gate and up, as PEFT has them. "
        "lora: one adapter for the fused QKV and one for the fused gate and up, with a shared A.",
    )
    rank: int = Field(
        32, ge=1, le=MAX_LORA_RANK, description="Rank r of the adapter (512 is the most that vLLM serves)."
    )
    alpha: int = Field(
        64, ge=1, le=8192, description="Numerator of the scaling alpha / rank; usually rank or twice the rank."
    )
    dropout: float = Field(
        0.0,
        ge=0.0,
        lt=1.0,
        description="Probability of dropout before the low-rank projection while training; log-probabilities are compared without it.",
    )
    target_modules: list[ModulePattern] = Field(
        min_length=1,
        max_length=64,
        description="Which linear layers get an adapter: [all-linear] (every one in the decoder, found from the model; never lm_head or a "
        "router), Hugging Face names (q_proj), Megatron names (linear_proj), or wildcards over full names (*.layers.0.*).",
        examples=[["all-linear"]],
    )
    exclude_modules: list[ModulePattern] = Field(
        default_factory=list,
        max_length=64,
        description="Layers to leave out of targetModules; the same names and wildcards.",
    )
    init_from: Uri | None = Field(
        None,
        description="Folder of a PEFT LoRA adapter to start from (s3://, gs://, az://, file:///FOLDER or file:FOLDER). Its rank, base "
        "model and modules must fit. It is read with the Secret of checkpoint.credentialsSecret. A new adapter when absent.",
        examples=["s3://team/adapters/earlier/iter_0000100/lora_adapter"],
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "targetModules",
            "!('all-linear' in self.targetModules) || size(self.targetModules) == 1",
            "all-linear to stand alone in targetModules",
            "write [all-linear], or list the modules without it; excludeModules leaves some out",
        ),
        Rule(
            "excludeModules",
            "!('all-linear' in self.excludeModules)",
            "excludeModules without all-linear, which would leave nothing to train",
            "name the modules to leave out",
        ),
        Rule(
            "excludeModules",
            "!self.targetModules.exists(m, m in self.excludeModules)",
            "no name in both targetModules and excludeModules",
            "take it out of one of them",
        ),
        *uri_rules("initFrom", ["s3", "gs", "az", "file"], optional=True, secret="checkpoint.credentialsSecret"),
    )
