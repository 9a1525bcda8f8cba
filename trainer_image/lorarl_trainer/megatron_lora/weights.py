"""The base model's weights from its safetensors files to the device, by several threads at a time.

Megatron-Bridge maps the files into memory and copies tensor by tensor: one thread waits for the disk, or for page faults, then joins
gate and up, and interleaves q, k and v, on the CPU. Here pieces of a tensor are read side by side, into pinned memory, and go straight
to the device, where the bridge joins them.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

type LoadTensors = Callable[[list[str]], dict[str, torch.Tensor]]

_THREADS, _PIECE_BYTES = 8, 32 << 20
_DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""What safetensors calls them. Others are left to the bridge."""


@dataclass(frozen=True)
class _Place:
    """Where a tensor lies: bytes of a file."""

    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


@contextmanager
def parallel_weights(state: Any, folder: Path, device: torch.device) -> Iterator[None]:
    """Let the bridge's `state` of a model come from the files in `folder`, read in this way, until the block ends."""
    weights = WeightFiles(folder, device, state.source.load_tensors)
    state.source.load_tensors = weights.load
    try:
        yield
    finally:
        del state.source.load_tensors  # the method is there again
        weights.close()
        if device.type == "cuda":
            torch.cuda.empty_cache()  # what the tensors came in: the engine looks at what is free


class WeightFiles:
    """Tensors of safetensors files, on a device."""

    def __init__(self, folder: Path, device: torch.device, load_others: LoadTensors) -> None:
        """`folder` holds *.safetensors; nothing is read yet. `load_others` is asked for what is not found, or of an unknown dtype."""
        self._folder, self._device, self._load_others = folder, device, load_others
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="weights")
        self._buffers = threading.local()

    def load(self, names: list[str]) -> dict[str, torch.Tensor]:
        """Return tensors by name, whole."""
        others = [name for name in names if name not in self._places]
        known = {name: self._read(self._places[name]) for name in names if name in self._places}
        return known | self._load_others(others) if others else known

    def close(self) -> None:
        """End the threads, with their memory."""
        self._threads.shutdown()

    @cached_property
    def _places(self) -> dict[str, _Place]:
        return {name: place for file in sorted(self._folder.glob("*.safetensors")) for name, place in _places_in(file)}

    def _read(self, place: _Place) -> torch.Tensor:
        target = torch.empty(place.end - place.begin, dtype=torch.uint8, device=self._device)

        def read(offset: int) -> None:
            there = target[offset : offset + _PIECE_BYTES]
            piece = there if there.is_cpu else self._buffer()[: len(there)]
            with place.file.open("rb", buffering=0) as file:
                view = memoryview(piece.numpy())
                while view:
                    count = os.preadv(file.fileno(), [view], place.begin + offset + len(piece) - len(view))
                    if not count:
                        raise EOFError(f"{place.file} ends before its tensors do")
                    view = view[count:]
            if piece is not there:
                there.copy_(piece)

        for _ in self._threads.map(read, range(0, len(target), _PIECE_BYTES)):
            pass
        return target.view(place.dtype).view(place.shape)

    def _buffer(self) -> torch.Tensor:
        """This thread's own memory, pinned."""
        if not hasattr(self._buffers, "piece"):
            self._buffers.piece = torch.empty(_PIECE_BYTES, dtype=torch.uint8, pin_memory=True)
        piece: torch.Tensor = self._buffers.piece
        return piece


def _places_in(file: Path) -> Iterable[tuple[str, _Place]]:
    """Read a file's header: eight bytes of its length, little-endian, and JSON; offsets count from its end."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(length))
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] in _DTYPES:
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            yield name, _Place(file, _DTYPES[entry["dtype"]], tuple(entry["shape"]), begin, end)
