"""Models whose experts are packed in MXFP4, as gpt-oss is published."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

QUANTIZATION = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}
E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
"""Numbers of four bits without their sign, of which the first bit is (OCP Microscaling Formats 1.0, section 5.3.3)."""


def pack(folder: Path, target: Path, seed: int = 0) -> tuple[Path, Path]:
    """Give a model random experts; return a folder that has them packed, and one that has them as they are."""
    stream, packed, plain = np.random.default_rng(seed), dict[str, torch.Tensor](), dict[str, torch.Tensor]()
    for name, tensor in load_file(folder / "model.safetensors").items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            packed[name] = plain[name] = tensor.bfloat16()
            continue
        experts, inputs, outputs = tensor.shape
        blocks = stream.integers(0, 256, (experts, outputs, inputs // 32, 16), np.uint8)
        scales = stream.integers(121, 125, (experts, outputs, inputs // 32), np.uint8)
        packed[f"{name}_blocks"], packed[f"{name}_scales"] = torch.from_numpy(blocks), torch.from_numpy(scales)
        codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*scales.shape, 32)
        values = np.where(codes & 8, -1.0, 1.0) * E2M1[codes & 7] * np.exp2(scales[..., None] - 127.0)
        rows = torch.from_numpy(values.reshape(experts, outputs, inputs)).bfloat16()
        plain[name] = rows.transpose(1, 2).contiguous()
    config = json.loads((folder / "config.json").read_text()) | {"dtype": "bfloat16"}
    for made, tensors, more in (
        (target / "packed", packed, {"quantization_config": QUANTIZATION}),
        (target / "plain", plain, {}),
    ):
        made.mkdir(parents=True)
        save_file(tensors, made / "model.safetensors", {"format": "pt"})
        (made / "config.json").write_text(json.dumps(config | more))
    return target / "packed", target / "plain"
