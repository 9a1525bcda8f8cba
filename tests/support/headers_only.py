"""A model's files without its weights: enough to say how large it is."""

from __future__ import annotations

import json
import struct
from pathlib import Path


def write_headers(
    folder: Path, *, hidden: int, ffn: int, layers: int, heads: int, key_heads: int, vocabulary: int
) -> None:
    """Write configuration and weights' headers, in two shards, of a Qwen2 model; add to an existing configuration."""
    file = folder / "config.json"
    config = json.loads(file.read_text()) if file.exists() else {}
    config.pop("layer_types", None)  # one a layer
    config |= {
        "model_type": config.get("model_type", "qwen2"),
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
    }
    config |= {"intermediate_size": ffn, "head_dim": hidden // heads}
    file.write_text(json.dumps({**config, "vocab_size": vocabulary, "tie_word_embeddings": False}))
    keys = hidden * key_heads // heads
    shapes: dict[str, list[int]] = {
        "model.embed_tokens.weight": [vocabulary, hidden],
        "lm_head.weight": [vocabulary, hidden],
    }
    shapes["model.norm.weight"] = [hidden]
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        for name, high in (("q_proj", hidden), ("k_proj", keys), ("v_proj", keys)):
            shapes[f"{prefix}self_attn.{name}.weight"], shapes[f"{prefix}self_attn.{name}.bias"] = (
                [high, hidden],
                [high],
            )
        shapes[f"{prefix}self_attn.o_proj.weight"] = [hidden, hidden]
        shapes[f"{prefix}mlp.gate_proj.weight"] = shapes[f"{prefix}mlp.up_proj.weight"] = [ffn, hidden]
        shapes[f"{prefix}mlp.down_proj.weight"] = [hidden, ffn]
        shapes[f"{prefix}input_layernorm.weight"] = shapes[f"{prefix}post_attention_layernorm.weight"] = [hidden]
    names = sorted(shapes)
    for number, part in enumerate((names[::2], names[1::2])):
        tensors = {name: {"dtype": "BF16", "shape": shapes[name], "data_offsets": [0, 0]} for name in part}
        header = {"__metadata__": {"format": "pt"}} | tensors
        text = json.dumps(header).encode()
        (folder / f"model-{number}.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
