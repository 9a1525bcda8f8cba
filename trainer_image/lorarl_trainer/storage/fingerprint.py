"""The fingerprint of a base model: digests that change with its content, without reading all of it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, BinaryIO

from lorarl_trainer.errors import InputError

_HEAD_BYTES = 1 << 20
_TENSOR_BYTES = 4096
_LFS_POINTER = b"version https://git-lfs"
_LENGTH_BYTES = 8
_LONGEST_HEADER = 100_000_000
"""The longest header that safetensors itself accepts."""
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
            for begin, end in _tensors(weights, file, size):
                weights.seek(begin)
                tensors.update(weights.read(min(_TENSOR_BYTES, end - begin)))
    return _PARTS.join([heads.hexdigest(), tensors.hexdigest()])


def same_base_model(was: str, now: str) -> bool:
    """Return whether two fingerprints are of the same model, as far as both can tell."""
    return all(a == b for a, b in zip(was.split(_PARTS), now.split(_PARTS), strict=False))


def _tensors(weights: BinaryIO, file: Path, size: int) -> list[tuple[int, int]]:
    """Return where each tensor begins and ends in its file, in their order."""
    weights.seek(0)
    length = int.from_bytes(weights.read(_LENGTH_BYTES), "little")
    first = _LENGTH_BYTES + length
    if not 2 <= length <= min(size, _LONGEST_HEADER):
        weights.seek(0)
        if weights.read(len(_LFS_POINTER)) == _LFS_POINTER:
            hint = "Fetch the weights themselves: git lfs pull, in the folder of the model."
            raise InputError("spec.model.uri", f"{file}, which is a pointer of git lfs", "complete weights", hint)
        raise _not_whole(file, "it does not begin with the length of a header")
    try:
        header: dict[str, Any] = json.loads(weights.read(length))
        places = sorted(
            (first + int(entry["data_offsets"][0]), first + int(entry["data_offsets"][1]))
            for name, entry in header.items()
            if name != "__metadata__"
        )
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise _not_whole(file, f"its header cannot be read: {error}") from error
    if places and (last := max(end for _, end in places)) != size:
        raise _not_whole(file, f"it has {size:,} bytes, and its header says {last:,}")
    return places


def _not_whole(file: Path, why: str) -> InputError:
    return InputError(
        "spec.model.uri",
        f"{file}, which is not a whole safetensors file ({why})",
        "complete weights",
        "Copy or download the model again.",
    )
