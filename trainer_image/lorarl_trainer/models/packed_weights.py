"""Weights in MXFP4: two codes of four bits in a byte, and a power of two for each block of 32 weights.

The format is that of the OCP Microscaling Formats specification, version 1.0, section 5.4. A file has a weight's codes
in `NAME_blocks`, [..., outputs, blocks of inputs, 16], and its exponents in `NAME_scales`, [..., outputs, blocks of
inputs]. What they mean are numbers that bf16 has exactly. Nothing here imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

MXFP4 = "mxfp4"
_BLOCKS, _SCALES = "_blocks", "_scales"
_IN_A_BYTE = 2
_OF_EXPERTS = 3
"""Dimensions of the weights of all experts of a layer."""


def plain_shapes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a file's tensors with those of the weights, [..., inputs, outputs], for packed ones."""
    found = {}
    for name, shape in shapes.items():
        if name.endswith(_BLOCKS):
            *before, outputs, blocks, size = shape
            found[name.removesuffix(_BLOCKS)] = (*before, math.prod((blocks, size, _IN_A_BYTE)), outputs)
        elif not name.endswith(_SCALES):
            found[name] = shape
    return found


def is_packed(config: Any) -> bool:
    """Return whether files have packed weights, given their configuration as Transformers has it."""
    quantization = getattr(config, "quantization_config", None) or {}
    return isinstance(quantization, Mapping) and quantization.get("quant_method") == MXFP4


def reading_options(config: Any) -> dict[str, Any]:
    """Return what Transformers' `from_pretrained` is called with for a model's configuration, as Transformers has it.

    By itself it would compute with the packed weights, where it finds the kernels.
    """
    if not is_packed(config):
        return {}
    from transformers import Mxfp4Config

    return {"quantization_config": Mxfp4Config(dequantize=True)}


def take_precision(model: Any, dtype: Any) -> None:
    """Let the experts' weights of a model of Transformers' that were packed have a precision: they are read to bf16."""
    for parameter in model.parameters():
        if parameter.dim() == _OF_EXPERTS:
            parameter.data = parameter.data.to(dtype)
