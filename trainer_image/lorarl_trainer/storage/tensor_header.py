"""The header of a safetensors file: eight bytes of its length, then JSON. See huggingface.co/docs/safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from lorarl_trainer.errors import InputError

_LFS_POINTER = b"version https://git-lfs"
_LENGTH_BYTES = 8
_LONGEST = 100_000_000
"""The longest header that safetensors itself accepts."""


class Stored(NamedTuple):
    """A tensor in a file: its type by safetensors' name, its shape, its first byte, and the first one after it."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(file: BinaryIO, size: int) -> dict[str, Stored]:
    """Return the tensors of a file of so many bytes by name.

    Raises:
        ValueError: it is not a whole safetensors file, and why.
    """
    file.seek(0)
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if not 2 <= length <= min(size, _LONGEST):
        raise ValueError("it does not begin with the length of a header")
    first = _LENGTH_BYTES + length
    try:
        header: dict[str, Any] = json.loads(file.read(length))
        header.pop("__metadata__", None)
        found = {
            name: Stored(
                str(entry["dtype"]),
                tuple(map(int, entry["shape"])),
                *(first + int(offset) for offset in entry["data_offsets"][:2]),
            )
            for name, entry in header.items()
        }
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise ValueError(f"its header cannot be read: {error}") from error
    if found and (last := max(one.end for one in found.values())) != size:
        raise ValueError(f"it has {size:,} bytes, and its header says {last:,}")
    return found


def header_of_weights(file: Path) -> dict[str, Stored]:
    """Return the tensors of one of the base model's weights files by name.

    Raises:
        InputError: it is not a whole safetensors file.
    """
    with file.open("rb") as stream:
        try:
            return read_header(stream, file.stat().st_size)
        except ValueError as error:
            stream.seek(0)
            if stream.read(len(_LFS_POINTER)) == _LFS_POINTER:
                got, fix = "a pointer of git lfs", "Fetch the weights: git lfs pull, in the folder of the model."
            else:
                got, fix = f"not a whole safetensors file ({error})", "Copy or download the model again."
            raise InputError("spec.model.uri", f"{file}, which is {got}", "complete weights", fix) from error
