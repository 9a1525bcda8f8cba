"""The families of models that Megatron-Bridge does not take, and that `trainer.backend: fsdp` trains.

A family is supported once tests/trainer compare it with Transformers and with vLLM. docs/models.md has the results.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

_ATTENTION = {
    "self_attn.q_proj.weight": "q h",
    "self_attn.k_proj.weight": "k h",
    "self_attn.v_proj.weight": "k h",
    "self_attn.o_proj.weight": "h q",
}
_BIASED_QKV = {"self_attn.q_proj.bias": "q", "self_attn.k_proj.bias": "k", "self_attn.v_proj.bias": "k"}
_GATED = {"mlp.gate_proj.weight": "f h", "mlp.up_proj.weight": "f h", "mlp.down_proj.weight": "h f"}
_HEAD_NORMS = {"self_attn.q_norm.weight": "d", "self_attn.k_norm.weight": "d"}
_WHOLE_NORMS = {"self_attn.q_norm.weight": "q", "self_attn.k_norm.weight": "k"}


def _norms(*names: str) -> dict[str, str]:
    return {f"{name}.weight": "h" for name in names}


def _biased(names: Mapping[str, str]) -> dict[str, str]:
    """Return the weights with a bias for each, as long as the weight's first size."""
    return {**names, **{name.replace(".weight", ".bias"): sizes.split()[0] for name, sizes in names.items()}}


_USUAL_NORMS = _norms("input_layernorm", "post_attention_layernorm")
_LATE_NORMS = _norms("post_attention_layernorm", "post_feedforward_layernorm")
_LLAMA = {**_ATTENTION, **_GATED, **_USUAL_NORMS}


@dataclass(frozen=True)
class FsdpFamily:
    """Models with one `model_type` in config.json, and where their tensors are.

    Sizes are words: h hidden, q queries, k keys, d a head, f the MLP, v the vocabulary, p the positions. Sums have +.

    Attributes:
        models: some that people know.
        architecture: the class of Transformers, in `architectures` of config.json.
        features: what these models have beyond Llama's.
        layer: the sizes of a layer's tensors, by name.
        outside: those of the others, without an output layer of the embedding's size.
        layers: where the layers are.
        shares_base: vLLM can use the trainer's tensors.
        tied: the output layer is the embedding if config.json does not say.
        transposed: weights of linear layers are [inputs, outputs], Transformers' Conv1D.
        usual: its own names in config.json for what other families call by the key.
        biases: the sizes of a layer's tensors that are there if config.json sets the key.
        only: what config.json may say, by key. Transformers or vLLM computes no other value.
        serves_adapters: vLLM by itself does. If not, lorarl's rollouts are made with an adapter all the same.
    """

    models: str
    architecture: str
    features: str
    layer: Mapping[str, str] = field(default_factory=lambda: _LLAMA)
    outside: Mapping[str, str] = field(
        default_factory=lambda: {"model.embed_tokens.weight": "v h", "model.norm.weight": "h"}
    )
    layers: str = "model.layers"
    shares_base: bool = True
    tied: bool = True
    transposed: bool = False
    usual: Mapping[str, str] = field(default_factory=dict)
    biases: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    only: Mapping[str, Any] = field(default_factory=dict)
    serves_adapters: bool = True

    def named_in_full(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Return a file's tensors by their names in the whole model, without tables that are no parameters.

        GPT-2's own files have those of the decoder alone, and its masks.
        """
        top, _, _ = self.layers.partition(".")
        decoder = {name.partition(".")[2].partition(".")[0] for name in self.outside if name.startswith(f"{top}.")}
        decoder.add(self.layers.partition(".")[2].partition(".")[0])
        return {
            f"{top}.{name}" if name.partition(".")[0] in decoder else name: shape
            for name, shape in shapes.items()
            if len(shape) <= 2
        }

    def shapes(
        self, sizes: Mapping[str, int], layers: int, *, tied: bool, options: Collection[str] = ()
    ) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor by its name. `options` are the keys of config.json that are true."""
        named, each = dict(self.outside), dict(self.layer)
        if not tied:
            named["lm_head.weight"] = "v h"
        for option, biases in self.biases.items():
            each.update(biases if option in options else {})
        for layer in range(layers):
            named.update({f"{self.layers}.{layer}.{name}": words for name, words in each.items()})
        return {
            name: tuple(sum(sizes[one] for one in word.split("+")) for word in words.split())
            for name, words in named.items()
        }


FSDP_FAMILIES: dict[str, FsdpFamily] = {
    "gemma2": FsdpFamily(
        "Gemma 2",
        "Gemma2ForCausalLM",
        "capped scores and logits, windows, norms around each sublayer",
        {**_LLAMA, **_norms("pre_feedforward_layernorm", "post_feedforward_layernorm")},
    ),
    "gemma3_text": FsdpFamily(
        "Gemma 3 (text: 270M, 1B)",
        "Gemma3ForCausalLM",
        "windows, norms of q and k, and around each sublayer",
        {**_LLAMA, **_HEAD_NORMS, **_norms("pre_feedforward_layernorm", "post_feedforward_layernorm")},
    ),
    "phi": FsdpFamily(
        "Phi-1, 1.5, 2",
        "PhiForCausalLM",
        "attention beside a GELU MLP, biases, also of the logits, positions on a part of each head",
        _biased(
            {
                **{name: size for name, size in _ATTENTION.items() if "o_proj" not in name},
                "self_attn.dense.weight": "h q",
                "mlp.fc1.weight": "f h",
                "mlp.fc2.weight": "h f",
                **_norms("input_layernorm"),
            }
        ),
        {"model.embed_tokens.weight": "v h", **_biased(_norms("model.final_layernorm")), "lm_head.bias": "v"},
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
            **_USUAL_NORMS,
        },
    ),
    "granite": FsdpFamily("Granite 3.x", "GraniteForCausalLM", "multipliers of residuals, scores and logits"),
    "olmo3": FsdpFamily(
        "OLMo 3",
        "Olmo3ForCausalLM",
        "windows, norms after each sublayer, and of q and k over all heads",
        {**_ATTENTION, **_GATED, **_WHOLE_NORMS, **_LATE_NORMS},
    ),
    "cohere": FsdpFamily(
        "Command R",
        "CohereForCausalLM",
        "attention beside the MLP, layer norms, scaled logits",
        {**_ATTENTION, **_GATED, **_norms("input_layernorm")},
    ),
    "cohere2": FsdpFamily(
        "Command R7B, Command A",
        "Cohere2ForCausalLM",
        "attention beside the MLP, windows, layers without positions, scaled logits",
        {**_ATTENTION, **_GATED, **_norms("input_layernorm")},
    ),
    "exaone4": FsdpFamily(
        "EXAONE 4",
        "Exaone4ForCausalLM",
        "norms after each sublayer, windows, layers without positions",
        {**_ATTENTION, **_GATED, **_HEAD_NORMS, **_LATE_NORMS},
    ),
    "opt": FsdpFamily(
        "OPT",
        "OPTForCausalLM",
        "learned positions, a ReLU MLP, biases, layer norms",
        _biased(
            {
                **{name: size for name, size in _ATTENTION.items() if "o_proj" not in name},
                "self_attn.out_proj.weight": "h q",
                "fc1.weight": "f h",
                "fc2.weight": "h f",
                **_norms("self_attn_layer_norm", "final_layer_norm"),
            }
        ),
        {
            "model.decoder.embed_tokens.weight": "v h",
            "model.decoder.embed_positions.weight": "p h",
            **_biased(_norms("model.decoder.final_layer_norm")),
        },
        layers="model.decoder.layers",
        shares_base=False,
        usual={"intermediate_size": "ffn_dim"},
    ),
    "arcee": FsdpFamily(
        "Arcee AFM",
        "ArceeForCausalLM",
        "an MLP of squared ReLU without a gate",
        {**_ATTENTION, "mlp.up_proj.weight": "f h", "mlp.down_proj.weight": "h f", **_USUAL_NORMS},
    ),
    "seed_oss": FsdpFamily(
        "Seed-OSS", "SeedOssForCausalLM", "biases of q, k and v, wide heads", {**_LLAMA, **_BIASED_QKV}
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
        {**_ATTENTION, **_GATED},
        {"model.embed_tokens.weight": "v h"},
        tied=False,
        only={"attention_bias": False, "clip_qkv": None},
    ),
    "olmo2": FsdpFamily(
        "OLMo 2",
        "Olmo2ForCausalLM",
        "norms after each sublayer, and of q and k over all heads",
        {**_ATTENTION, **_GATED, **_WHOLE_NORMS, **_LATE_NORMS},
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
        _biased(
            {
                **_ATTENTION,
                "mlp.c_fc.weight": "f h",
                "mlp.c_proj.weight": "h f",
                **_USUAL_NORMS,
            }
        ),
        {"model.embed_tokens.weight": "v h", **_biased(_norms("model.norm"))},
        only={"use_bias": True},
    ),
    "stablelm": FsdpFamily(
        "StableLM 3B, StableLM 2 1.6B",
        "StableLmForCausalLM",
        "positions on a part of each head, layer norms",
        {**_ATTENTION, **_GATED, **_biased(_USUAL_NORMS)},
        {"model.embed_tokens.weight": "v h", **_biased(_norms("model.norm"))},
        tied=False,
        biases={"use_qkv_bias": _BIASED_QKV},
        only={"qk_layernorm": False, "use_parallel_residual": False},
        serves_adapters=False,
    ),
    "gpt2": FsdpFamily(
        "GPT-2, DistilGPT-2",
        "GPT2LMHeadModel",
        "learned positions, Conv1D with q, k and v in one, a GELU MLP, biases, layer norms",
        {
            **_biased(_norms("ln_1", "ln_2")),
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
            **_biased(_norms("transformer.ln_f")),
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


def with_usual_names(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a config.json in which sizes have the names that most families give them."""
    family = FSDP_FAMILIES.get(str(config.get("model_type")))
    own = {} if family is None else family.usual
    return {**config, **{usual: config[name] for usual, name in own.items() if name in config}}


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
    return {
        "h": hidden,
        "q": config["num_attention_heads"] * head,
        "k": key_heads * head,
        "d": head,
        "f": inner,
        "v": config["vocab_size"],
        "p": config.get("max_position_embeddings", 0) + positions,
    }
