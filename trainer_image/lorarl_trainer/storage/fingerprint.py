"""The fingerprint of a base model: digests that change with its content, without reading all of it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from lorarl_trainer.storage.tensor_header import header_of_weights

_HEAD_BYTES = 1 << 20
_TENSOR_BYTES = 4096
_PARTS = "."


def fingerprint(folder: Path) -> str:
    """Return the fingerprint of a model folder: two digests with a dot between them.

    The first is of config.json, and of the size and first mebibyte of each weights file. Those are the header and often
    the embedding, which a merged adapter leaves as they are. The second is of the first bytes of every tensor.
    Checkpoints of earlier releases have the first alone; see `same_base_model`.

    Raises:
        InputError: a weights file is not a whole safetensors file.
        OSError: a file cannot be read.
    """
    config = (folder / "config.json").read_bytes()
    heads, tensors = hashlib.sha256(config), hashlib.sha256(config)
    for file in sorted(folder.glob("*.safetensors")):
        size = file.stat().st_size
        with file.open("rb") as weights:
            heads.update(f"{file.name}:{size}:".encode() + weights.read(_HEAD_BYTES))
            for begin, end in sorted((one.begin, one.end) for one in header_of_weights(file).values()):
                weights.seek(begin)
                tensors.update(weights.read(min(_TENSOR_BYTES, end - begin)))
    return _PARTS.join([heads.hexdigest(), tensors.hexdigest()])


def same_base_model(was: str, now: str) -> bool:
    """Return whether two fingerprints are of the same model, as far as both can tell."""
    return all(a == b for a, b in zip(was.split(_PARTS), now.split(_PARTS), strict=False))
