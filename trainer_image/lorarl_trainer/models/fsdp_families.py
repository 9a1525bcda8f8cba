"""The families of models that Megatron-Bridge does not take, and that `trainer.backend: fsdp` trains.

A family is supported once tests/trainer compare it with Transformers and with vLLM. docs/models.md has the results.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lorarl_trainer.lora.tensor_names import EARLIER_NAMES
from lorarl_trainer.models.fsdp_family import (
    ATTENTION,
    BIASED_QKV,
    GATED,
    HEAD_NORMS,
    LATE_NORMS,
    LLAMA,
    USUAL_NORMS,
    WHOLE_NORMS,
    FsdpFamily,
    biased,
    norms,
)
from lorarl_trainer.models.gemma4 import GEMMA_4
from lorarl_trainer.models.glm4 import GLM_4
from lorarl_trainer.models.gpt_oss import GPT_OSS
from lorarl_trainer.models.granite4 import GRANITE_4
from lorarl_trainer.models.layer_kinds import LAYER_KINDS, kinds_of
from lorarl_trainer.models.lfm2 import LFM_2
from lorarl_trainer.models.qwen3_5 import QWEN_3_5

FSDP_FAMILIES: dict[str, FsdpFamily] = {
    "gemma2": FsdpFamily(
        "Gemma 2",
        "Gemma2ForCausalLM",
        "capped scores and logits, windows, norms around each sublayer",
        {**LLAMA, **norms("pre_feedforward_layernorm", "post_feedforward_layernorm")},
    ),
    "gemma3_text": FsdpFamily(
        "Gemma 3 (text: 270M, 1B)",
        "Gemma3ForCausalLM",
        "windows, norms of q and k, and around each sublayer",
        {**LLAMA, **HEAD_NORMS, **norms("pre_feedforward_layernorm", "post_feedforward_layernorm")},
    ),
    "gemma3": FsdpFamily(
        "Gemma 3 (4B, 12B, 27B), on text",
        "Gemma3ForConditionalGeneration",
        "as `gemma3_text`, in a model that also takes images",
        {**LLAMA, **HEAD_NORMS, **norms("pre_feedforward_layernorm", "post_feedforward_layernorm")},
        {"model.language_model.embed_tokens.weight": "v h", "model.language_model.norm.weight": "h"},
        layers="model.language_model.layers",
        defaults={"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262_208},
        in_files=EARLIER_NAMES,
        sees=True,
    ),
    **GEMMA_4,
    "gpt_oss": GPT_OSS,
    **GLM_4,
    **QWEN_3_5,
    "lfm2": LFM_2,
    "phi": FsdpFamily(
        "Phi-1, 1.5, 2",
        "PhiForCausalLM",
        "attention beside a GELU MLP, biases, also of the logits, positions on a part of each head",
        biased(
            {
                **{name: size for name, size in ATTENTION.items() if "o_proj" not in name},
                "self_attn.dense.weight": "h q",
                "mlp.fc1.weight": "f h",
                "mlp.fc2.weight": "h f",
                **norms("input_layernorm"),
            }
        ),
        {"model.embed_tokens.weight": "v h", **biased(norms("model.final_layernorm")), "lm_head.bias": "v"},
    ),
    "phi3": FsdpFamily(
        "Phi-3, Phi-3.5 mini, Phi-4",
        "Phi3ForCausalLM",
        "one layer for q, k and v, and one for gate and up",
        {
            "self_attn.qkv_proj.weight": "q+k+k h",
            "self_attn.o_proj.weight": "h q",
            "mlp.gate_up_proj.weight": "f+f h",
            "mlp.down_proj.weight": "h f",
            **USUAL_NORMS,
        },
    ),
    "granite": FsdpFamily("Granite 3.x, 4.1", "GraniteForCausalLM", "multipliers of residuals, scores and logits"),
    "granitemoehybrid": GRANITE_4,
    "olmo3": FsdpFamily(
        "OLMo 3",
        "Olmo3ForCausalLM",
        "windows, norms after each sublayer, and of q and k over all heads",
        {**ATTENTION, **GATED, **WHOLE_NORMS, **LATE_NORMS},
    ),
    "cohere": FsdpFamily(
        "Command R",
        "CohereForCausalLM",
        "attention beside the MLP, layer norms, scaled logits",
        {**ATTENTION, **GATED, **norms("input_layernorm")},
    ),
    "cohere2": FsdpFamily(
        "Command R7B, Command A",
        "Cohere2ForCausalLM",
        "attention beside the MLP, windows, layers without positions, scaled logits",
        {**ATTENTION, **GATED, **norms("input_layernorm")},
    ),
    "exaone4": FsdpFamily(
        "EXAONE 4",
        "Exaone4ForCausalLM",
        "norms after each sublayer, windows, layers without positions",
        {**ATTENTION, **GATED, **HEAD_NORMS, **LATE_NORMS},
    ),
    "opt": FsdpFamily(
        "OPT",
        "OPTForCausalLM",
        "learned positions, a ReLU MLP, biases, layer norms",
        biased(
            {
                **{name: size for name, size in ATTENTION.items() if "o_proj" not in name},
                "self_attn.out_proj.weight": "h q",
                "fc1.weight": "f h",
                "fc2.weight": "h f",
                **norms("self_attn_layer_norm", "final_layer_norm"),
            }
        ),
        {
            "model.decoder.embed_tokens.weight": "v h",
            "model.decoder.embed_positions.weight": "p h",
            **biased(norms("model.decoder.final_layer_norm")),
        },
        layers="model.decoder.layers",
        shares_base=False,
        usual={"intermediate_size": "ffn_dim"},
    ),
    "arcee": FsdpFamily(
        "Arcee AFM",
        "ArceeForCausalLM",
        "an MLP of squared ReLU without a gate",
        {**ATTENTION, "mlp.up_proj.weight": "f h", "mlp.down_proj.weight": "h f", **USUAL_NORMS},
    ),
    "seed_oss": FsdpFamily(
        "Seed-OSS", "SeedOssForCausalLM", "biases of q, k and v, wide heads", {**LLAMA, **BIASED_QKV}
    ),
    "gemma": FsdpFamily(
        "Gemma",
        "GemmaForCausalLM",
        "scaled embeddings, a gated GELU MLP, norms that multiply by 1 + weight",
        only={"attention_bias": False, "use_bidirectional_attention": None},
    ),
    "ernie4_5": FsdpFamily(
        "ERNIE 4.5 0.3B", "Ernie4_5ForCausalLM", "positions on neighbouring pairs of a head", only={"use_bias": False}
    ),
    "olmo": FsdpFamily(
        "OLMo",
        "OlmoForCausalLM",
        "norms without weights",
        {**ATTENTION, **GATED},
        {"model.embed_tokens.weight": "v h"},
        tied=False,
        only={"attention_bias": False, "clip_qkv": None},
    ),
    "olmo2": FsdpFamily(
        "OLMo 2",
        "Olmo2ForCausalLM",
        "norms after each sublayer, and of q and k over all heads",
        {**ATTENTION, **GATED, **WHOLE_NORMS, **LATE_NORMS},
        tied=False,
        only={"attention_bias": False},
    ),
    "smollm3": FsdpFamily(
        "SmolLM3", "SmolLM3ForCausalLM", "layers without positions", only={"attention_bias": False, "mlp_bias": False}
    ),
    "starcoder2": FsdpFamily(
        "StarCoder2",
        "Starcoder2ForCausalLM",
        "a GELU MLP, a window, biases, layer norms",
        biased(
            {
                **ATTENTION,
                "mlp.c_fc.weight": "f h",
                "mlp.c_proj.weight": "h f",
                **USUAL_NORMS,
            }
        ),
        {"model.embed_tokens.weight": "v h", **biased(norms("model.norm"))},
        only={"use_bias": True},
    ),
    "stablelm": FsdpFamily(
        "StableLM 3B, StableLM 2 1.6B",
        "StableLmForCausalLM",
        "positions on a part of each head, layer norms",
        {**ATTENTION, **GATED, **biased(USUAL_NORMS)},
        {"model.embed_tokens.weight": "v h", **biased(norms("model.norm"))},
        tied=False,
        if_set={"use_qkv_bias": BIASED_QKV},
        only={"qk_layernorm": False, "use_parallel_residual": False},
        serves_adapters=False,
    ),
    "ministral3": FsdpFamily(
        "Ministral 3 (text)",
        "Ministral3ForCausalLM",
        "positions scaled by yarn, queries scaled beyond the original positions",
        tied=False,
        defaults={
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 16.0,
                "original_max_position_embeddings": 16_384,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            }
        },
    ),
    "gpt2": FsdpFamily(
        "GPT-2, DistilGPT-2",
        "GPT2LMHeadModel",
        "learned positions, Conv1D with q, k and v in one, a GELU MLP, biases, layer norms",
        {
            **biased(norms("ln_1", "ln_2")),
            "attn.c_attn.weight": "h q+k+k",
            "attn.c_attn.bias": "q+k+k",
            "attn.c_proj.weight": "q h",
            "attn.c_proj.bias": "h",
            "mlp.c_fc.weight": "h f",
            "mlp.c_fc.bias": "f",
            "mlp.c_proj.weight": "f h",
            "mlp.c_proj.bias": "h",
        },
        {
            "transformer.wte.weight": "v h",
            "transformer.wpe.weight": "p h",
            **biased(norms("transformer.ln_f")),
        },
        layers="transformer.h",
        shares_base=False,
        transposed=True,
        usual={
            "hidden_size": "n_embd",
            "num_attention_heads": "n_head",
            "num_hidden_layers": "n_layer",
            "max_position_embeddings": "n_positions",
            "intermediate_size": "n_inner",
        },
        only={
            "add_cross_attention": False,
            "reorder_and_upcast_attn": False,
            "scale_attn_by_inverse_layer_idx": False,
            "scale_attn_weights": True,
        },
        serves_adapters=False,
    ),
}
"""By `model_type`."""


def auto_class(model_type: str) -> str:
    """Return the class of Transformers that loads a model by the names of its files.

    The class for language models leaves out what sees in some families, and has names of its language model alone.
    """
    family = FSDP_FAMILIES.get(model_type)
    return "AutoModelForImageTextToText" if family is not None and family.sees else "AutoModelForCausalLM"


def with_usual_names(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a config.json in which sizes have the names that most families give them, and all are there.

    Of a model that also takes images, they are its language model's.
    """
    family = FSDP_FAMILIES.get(str(config.get("model_type")))
    if family is None:
        return config
    if family.sees:
        config = {**(config.get("text_config") or {}), **config}
    own = {usual: config[name] for usual, name in family.usual.items() if name in config}
    found = {**family.defaults, **config, **own}
    if family.latent:
        found["head_dim"] = found["qk_nope_head_dim"] + found["qk_rope_head_dim"]
        found["num_key_value_heads"] = found["num_attention_heads"]
    return found


def may_be_adapted(model_type: str, layer: str) -> bool:
    """Return whether a linear layer of a model may have an adapter."""
    family = FSDP_FAMILIES.get(model_type)
    return family is None or family.adapted in layer


def sizes_by_word(config: Mapping[str, Any], *, hidden: int, key_heads: int, head: int) -> dict[str, int]:
    """Return what the words of `FsdpFamily` mean for a config.json with usual names.

    Raises:
        KeyError: it leaves out a size.
    """
    positions = 2 if config["model_type"] == "opt" else 0  # its first positions are for padding
    if config["model_type"] == "gpt2":
        inner = config.get("intermediate_size") or 4 * hidden  # null and absent mean this
    else:
        inner = config["intermediate_size"]
    words = {
        name: size
        for kind in {*kinds_of(config)} & {*LAYER_KINDS}
        for name, size in LAYER_KINDS[kind].words(config).items()
    }
    family = FSDP_FAMILIES[config["model_type"]]
    for own in (family.words, family.uneven.words if family.uneven else None):
        words.update(own(config) if own else {})
    return {
        **words,
        "h": hidden,
        "q": config["num_attention_heads"] * head,
        "k": key_heads * head,
        "d": head,
        "f": inner,
        "v": config["vocab_size"],
        "p": config.get("max_position_embeddings", 0) + positions,
    }
