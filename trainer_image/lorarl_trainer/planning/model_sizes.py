"""Sizes of a base model, read off its own files: config.json and the headers of the weights. No weight is read, and torch not imported."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any

from lorarl_api.v1alpha1 import AdapterSpec
from lorarl_trainer.errors import InputError
from lorarl_trainer.lora.targets import Linear, resolve_targets
from lorarl_trainer.storage.downloads import REPEATED_WEIGHTS, WEIGHTS

_FUSED = {
    "q_proj": ("linear_qkv", "q"),
    "k_proj": ("linear_qkv", "k"),
    "v_proj": ("linear_qkv", "v"),
    "gate_proj": ("linear_fc1", "gate"),
    "up_proj": ("linear_fc1", "up"),
}
"""The linear layers that Megatron keeps as parts of one."""
_ALONE = {"o_proj": "linear_proj", "down_proj": "linear_fc2"}
VOCABULARY_MULTIPLE = 64
"""vLLM rounds the vocabulary up to a multiple of this; the trainer does not."""


@dataclass(frozen=True)
class LinearSize:
    """A linear layer of the decoder: whether tensor parallelism splits its output (else its input), and its widths."""

    name: str
    split_output: bool
    inputs: int
    outputs: int


@dataclass(frozen=True)
class ModelSizes:
    """What a model's files tell.

    Attributes:
        shapes: of each tensor by its Hugging Face name.
        layers, hidden, key_heads, head, vocabulary: from config.json.
        tied: the output layer is the embedding.
    """

    shapes: Mapping[str, tuple[int, ...]]
    layers: int
    hidden: int
    key_heads: int
    head: int
    vocabulary: int
    tied: bool

    @cached_property
    def linears(self) -> tuple[LinearSize, ...]:
        """The linear layers of the decoder."""
        found = []
        for name, shape in self.shapes.items():
            module = name.removesuffix(".weight")
            if ".layers." in name and module != name and len(shape) == 2:
                found.append(LinearSize(module, _last(module) not in _ALONE, shape[1], shape[0]))
        return tuple(found)

    def width(self, *names: str) -> int:
        """The output width of the decoder's linear layers of these names together, in the largest layer."""
        widest = {
            name: max((linear.outputs for linear in self.linears if _last(linear.name) == name), default=0)
            for name in names
        }
        return sum(widest.values())

    def parameters(self, tensor_parallel_size: int) -> int:
        """Parameters of the base on one tensor-parallel rank: norms are whole on each, the vocabulary is rounded up."""
        return sum(self._share(name, shape, tensor_parallel_size) for name, shape in self.shapes.items())

    def qkv_parameters(self, tensor_parallel_size: int) -> int:
        """Those of them whose layout differs between Megatron and vLLM: queries, keys and values, with their biases."""
        names = [name for name in self.shapes if _last(name.rpartition(".")[0]) in ("q_proj", "k_proj", "v_proj")]
        return sum(self._share(name, self.shapes[name], tensor_parallel_size) for name in names)

    def adapted(self, adapter: AdapterSpec) -> tuple[LinearSize, ...]:
        """The linear layers that get an adapter; all of them where the names are such as only the loaded model can tell."""
        named: dict[str, dict[str, str]] = {}
        for linear in self.linears:
            parent, _, last = linear.name.rpartition(".")
            fused, part = _FUSED.get(last, (_ALONE.get(last, last), ""))
            named.setdefault(f"{parent}.{fused}", {})[part] = linear.name
        linears = [Linear(name, parts) for name, parts in named.items()]
        try:
            targets = resolve_targets(linears, adapter.type, adapter.target_modules, adapter.exclude_modules)
        except InputError:
            return self.linears
        chosen = {name for target in targets for name in target.hf_names}
        return tuple(linear for linear in self.linears if linear.name in chosen)

    def _share(self, name: str, shape: tuple[int, ...], ranks: int) -> int:
        if "norm" in name:
            return math.prod(shape)
        if shape[0] == self.vocabulary:
            padded = -(-shape[0] // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
            return -(-padded // ranks) * math.prod(shape[1:])
        return -(-math.prod(shape) // ranks)


def read_model_sizes(folder: Path) -> ModelSizes:
    """Read the sizes of the model in `folder`.

    Raises:
        InputError: it has no weights in safetensors format.
    """
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    config = config.get("text_config", config)
    shapes: dict[str, tuple[int, ...]] = {}
    for file in sorted(path for path in folder.glob(WEIGHTS) if not fnmatch(path.name, REPEATED_WEIGHTS)):
        shapes |= {name: tuple(tensor["shape"]) for name, tensor in read_header(file).items() if name != "__metadata__"}
    if not shapes:
        raise InputError(
            "spec.model.uri", str(folder), "weights in *.safetensors files", "Save the model with save_pretrained."
        )
    heads = config["num_attention_heads"]
    tied = bool(config.get("tie_word_embeddings", False))
    return ModelSizes(
        # A tied model may have been saved with its output layer all the same.
        {name: shape for name, shape in shapes.items() if not (tied and name == "lm_head.weight")},
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        key_heads=config.get("num_key_value_heads") or heads,
        head=config.get("head_dim") or config["hidden_size"] // heads,
        vocabulary=config["vocab_size"],
        tied=tied,
    )


def read_header(file: Path) -> dict[str, Any]:
    """Return the header of a safetensors file: eight bytes with its length, then JSON (huggingface.co/docs/safetensors)."""
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header: dict[str, Any] = json.loads(stream.read(length))
    return header


def _last(name: str) -> str:
    return name.rpartition(".")[2]
