"""The fingerprint of a base model: a digest that changes with its content, without reading all of it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from lorarl_trainer.storage.tensor_header import header_of_weights

_HEAD_BYTES = 1 << 20
_TENSOR_BYTES = 4096


def fingerprint(folder: Path) -> str:
    """Return a digest of config.json, and of each weights file's size, first mebibyte, and first bytes of every tensor.

    The first mebibyte is the header and often the embedding, which a merged adapter leaves as they are.

    Raises:
        InputError: a weights file is not a whole safetensors file.
        OSError: a file cannot be read.
    """
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for file in sorted(folder.glob("*.safetensors")):
        size = file.stat().st_size
        with file.open("rb") as weights:
            digest.update(f"{file.name}:{size}:".encode() + weights.read(_HEAD_BYTES))
            for begin, end in sorted((one.begin, one.end) for one in header_of_weights(file).values()):
                weights.seek(begin)
                digest.update(weights.read(min(_TENSOR_BYTES, end - begin)))
    return digest.hexdigest()
