"""A model's weights as its files have them: names and shapes, of the files' headers. Nothing here imports torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from lorarl_trainer.errors import InputError
from lorarl_trainer.storage.downloads import REPEATED_WEIGHTS, WEIGHTS
from lorarl_trainer.storage.tensor_header import Stored, header_of_weights

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_COPY_AGAIN = "Copy or download the model again."
_TYPES = ("BF16", "F16", "F32", "F64")
_EMBEDDING, _OUTPUT = ("embed_tokens.weight", "wte.weight"), "lm_head.weight"
_COMPARED_BYTES = 1 << 16
"""How much of two tensors is compared, from their beginning."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file."""

    file: Path
    stored: Stored

    def begins_like(self, other: StoredTensor) -> bool:
        """Return whether both have the same shape, type and first values."""
        return self.stored[:2] == other.stored[:2] and self._first_bytes() == other._first_bytes()

    def _first_bytes(self) -> bytes:
        with self.file.open("rb") as stream:
            stream.seek(self.stored.begin)
            return stream.read(min(_COMPARED_BYTES, self.stored.end - self.stored.begin))


def stored_weights(folder: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a model's folder by name.

    Raises:
        InputError: it has no weights in safetensors format, a file is not whole, they are not where its index says, or
            two of its files have different ones of the same name.
    """
    index = _read_index(folder)
    files = sorted(set(index.values())) or sorted(
        path.name for path in folder.glob(WEIGHTS) if not fnmatch(path.name, REPEATED_WEIGHTS)
    )
    if not files:
        raise InputError(
            "spec.model.uri", str(folder), "weights in *.safetensors files", "Save the model with save_pretrained."
        )
    # Transformers prefers this file to the index, and vLLM the index.
    single = [_SINGLE] if _SINGLE not in files and (folder / _SINGLE).is_file() else []
    found: dict[str, StoredTensor] = {}
    for file in (*files, *single):
        for name, stored in header_of_weights(folder / file).items():
            tensor = StoredTensor(folder / file, stored)
            _require_alike(name, found.setdefault(name, tensor), tensor)
    for name, file in index.items():
        if name not in found or found[name].file != folder / file:
            got = f"{folder / _INDEX}, which says that {name} is in {file}"
            raise InputError("spec.model.uri", got, "an index that fits the files", _COPY_AGAIN)
    return found


def _read_index(folder: Path) -> Mapping[str, str]:
    """Return each tensor's file, empty if there is no index.

    Raises:
        InputError: it cannot be read, or a file is not there.
    """
    index = folder / _INDEX
    if not index.is_file():
        return {}
    try:
        files: dict[str, str] = json.loads(index.read_bytes())["weight_map"]
        named = sorted(set(files.values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            "spec.model.uri", f"{index}, which cannot be read ({error})", "the index of the weights", _COPY_AGAIN
        ) from error
    if gone := [name for name in named if not (folder / name).is_file()]:
        got = f"{folder}, in which {len(gone)} of {len(named)} weights files are missing, first {gone[0]}"
        raise InputError("spec.model.uri", got, f"every file that {_INDEX} names", _COPY_AGAIN)
    return files


def _require_alike(name: str, one: StoredTensor, other: StoredTensor) -> None:
    """Refuse two tensors of one name: the trainer, vLLM and Transformers would not all take the same."""
    if one is not other and not one.begins_like(other):
        files = f"{one.file.name} and {other.file.name}"
        raise InputError(
            "spec.model.uri",
            f"{one.file.parent}, whose files {files} have different weights {name}",
            "each weight once",
            "Remove the files that do not belong to the model.",
        )


def require_no_other_output(weights: Mapping[str, StoredTensor]) -> None:
    """Refuse an output layer that is not the embedding, in the files of a tied model.

    vLLM and Megatron would use the embedding, and Transformers the output layer.

    Raises:
        InputError: naming both.
    """
    embedding, output = (
        next((name for name in weights if name.endswith(ends)), None) for ends in (_EMBEDDING, _OUTPUT)
    )
    if embedding and output and not weights[embedding].begins_like(weights[output]):
        raise InputError(
            "spec.model.uri",
            f"{weights[output].file.parent}, whose {output} differs from {embedding}",
            "the same weights in both, since tie_word_embeddings is true",
            f"Set tie_word_embeddings: false in config.json, or remove {output} if it belongs to another model.",
        )


def require_plain_values(weights: Mapping[str, StoredTensor]) -> None:
    """Refuse weights that are codes of quantized values: without their scales they are other numbers.

    Raises:
        InputError: naming the first of them.
    """
    for name, tensor in weights.items():
        # GPT-2's files also have masks, which are no weights.
        if name.endswith(".weight") and tensor.stored.dtype not in _TYPES:
            raise InputError(
                "spec.model.uri",
                f"{tensor.file}, whose {name} has the type {tensor.stored.dtype}: a quantized weight",
                "weights in bf16, fp16 or fp32",
                "Name the model that was quantized.",
            )
