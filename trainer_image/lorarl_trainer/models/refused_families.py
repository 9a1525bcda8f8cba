"""The families that users ask for, or that were tried, and that lorarl refuses: why, and what it trains instead.

The reason of a family comes before the rules on single keys of config.json, which would name something less true of
it. docs/models.md has the same table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lorarl_trainer.errors import InputError

_MAMBA = "its Mamba layers were not compared: they stand otherwise in the model than Granite 4.0 H's"
_LATENT = "its latent attention, one compressed key for all heads, was not compared"
_BESIDE = "PEFT 0.21 mistakes adapters on its dense or shared MLPs for expert adapters, and drops them"
_NOT_BY_EXPERT = "PEFT 0.21 reads no adapter on single experts of it"
_LLAMA_4 = "its attention in chunks, and its fused experts, were not compared"
_OWN_CODE = "it needs custom code from its repository, which lorarl does not run"
_DENSE, _MIXTURE = "Qwen3", "Qwen3-30B-A3B"


@dataclass(frozen=True)
class Refused:
    """Why models of a `model_type` are refused.

    Attributes:
        models: what people call them.
        why: what stands in the way.
        instead: the nearest that is trained.
    """

    models: str
    why: str
    instead: str


_GEMMA_4_EXPERTS = Refused(
    "Gemma 4 26B-A4B",
    "its experts beside a dense MLP were not compared, and PEFT 0.21 reads no adapter on single experts of it",
    "Gemma 4 E4B or 31B",
)
REFUSED_WITH: Mapping[tuple[str, str], Refused] = {
    ("gemma4", "enable_moe_block"): _GEMMA_4_EXPERTS,
    ("gemma4_text", "enable_moe_block"): _GEMMA_4_EXPERTS,
    ("granitemoehybrid", "num_local_experts"): Refused(
        "Granite 4.0 with experts", "its experts beside a shared MLP were not compared", "Granite 4.0 Micro"
    ),
}
"""Models of a family that is trained, by `model_type` and what config.json sets for them, or a kind of their layers."""
REFUSED: Mapping[str, Refused] = {
    "qwen3_5_text": Refused(
        "Qwen3.5, its text part alone", "vLLM 0.26 has no model of it", "Qwen3.5 in its published files (`qwen3_5`)"
    ),
    "qwen3_5_moe_text": Refused(
        "Qwen3.5 with experts, its text part alone",
        "vLLM 0.26 has no model of it",
        "Qwen3.5 with experts in its published files (`qwen3_5_moe`)",
    ),
    "qwen3_next": Refused("Qwen3-Next", _BESIDE, "Qwen3.5-35B-A3B"),
    "glm_moe_dsa": Refused("GLM-5", "its latent attention, over chosen tokens alone, was not compared", _MIXTURE),
    "nemotron_h": Refused("Nemotron-3, Nemotron Nano 2", _MAMBA, f"{_DENSE} or {_MIXTURE}"),
    "deepseek_v2": Refused("DeepSeek V2", _LATENT, "a DeepSeek-R1-Distill of Qwen or Llama"),
    "deepseek_v3": Refused("DeepSeek V3, V3.1 and R1", _LATENT, "a DeepSeek-R1-Distill of Qwen or Llama"),
    "deepseek_v32": Refused(
        "DeepSeek V3.2",
        "its latent attention, over chosen tokens alone, was not compared",
        "a DeepSeek-R1-Distill of Qwen or Llama",
    ),
    "deepseek_v4": Refused(
        "DeepSeek V4", "its compressed attention was not compared", "a DeepSeek-R1-Distill of Qwen or Llama"
    ),
    "kimi_k2": Refused("Kimi K2", _LATENT, _MIXTURE),
    "kimi_k25": Refused("Kimi K2.5, K2.6", "vLLM 0.26 serves no adapters of it", _MIXTURE),
    "kimi_linear": Refused("Kimi Linear", "its latent attention and delta nets were not compared", _MIXTURE),
    "minimax_m2": Refused(
        "MiniMax M2",
        "its router's sigmoids and biases, and positions on a part of each head, were not compared",
        _MIXTURE,
    ),
    "minimax_m3_vl": Refused("MiniMax M3", "its attention over chosen tokens alone was not compared", _MIXTURE),
    "llama4": Refused("Llama 4", _LLAMA_4, "Llama 3.x"),
    "llama4_text": Refused("Llama 4, its text part alone", _LLAMA_4, "Llama 3.x"),
    "lfm2_moe": Refused("LFM2 with experts", "its experts beside short convolutions were not compared", "LFM2, dense"),
    "falcon_h1": Refused("Falcon H1", _MAMBA, _DENSE),
    "qwen2_moe": Refused(
        "Qwen1.5-MoE, Qwen2-57B-A14B",
        "Megatron alone trains mixtures here, and Megatron-Bridge has no conversion for it",
        _MIXTURE,
    ),
    "ernie4_5_moe": Refused("ERNIE 4.5 with experts", _BESIDE, _MIXTURE),
    "hy_v3": Refused("Hunyuan 3", _NOT_BY_EXPERT, _MIXTURE),
    "exaone_moe": Refused("K-EXAONE", _BESIDE, _MIXTURE),
    "bailing_moe_v2": Refused("Ling 2, Ring 2", _OWN_CODE, _MIXTURE),
    "step3p5": Refused("Step 3.5", _OWN_CODE, _MIXTURE),
    "sarvam_moe": Refused("Sarvam with experts", _OWN_CODE, _MIXTURE),
    "mimo_v2_flash": Refused("MiMo V2 Flash", _OWN_CODE, _MIXTURE),
    "glm4": Refused(
        "GLM-4-0414",
        "vLLM looks for the adapters of gate and up apart, and Transformers has one layer for both",
        _DENSE,
    ),
    "hunyuan_v1_dense": Refused(
        "Hunyuan, dense",
        "vLLM computes another function than Transformers: a tiny model's answers were 4 nats apart",
        _DENSE,
    ),
    "diffllama": Refused("DiffLlama", "vLLM 0.26 has no model of it", "Llama 3.x"),
    "ministral": Refused("Ministral with windows", "vLLM 0.26 has no model of it", "Mistral 7B"),
    "nemotron": Refused("Nemotron-4, Minitron", "Transformers' attention of it takes no packed sequences", "Llama 3.x"),
}
"""By `model_type`."""


def refused(got: str, expected: str, hint: str) -> InputError:
    """Return the error for a model whose config.json has what is not trained."""
    return InputError("spec.model.uri", f"a config.json with {got}", expected, hint)
