"""Hundreds of small copies in a launch or two: each program of the kernel moves, or compares, one tile.

With one launch per copy, launching would take longer than copying: an adapter of a 7B model is 392 tensors of 0.4 MB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import triton
import triton.language as tl

_TILE = 4096
"""Elements that one program moves: 8 KB in bf16, so that even a small adapter keeps every multiprocessor busy."""
_WIDE = 512
"""Rows of at least this many elements are cut into tiles of one row."""
_ALIGNMENT = 16
"""Bytes that a GPU loads at once if it knows that they are aligned."""
_TYPES = {torch.bfloat16: tl.bfloat16, torch.float32: tl.float32, torch.float16: tl.float16}


class CopyKernel:
    """Copies cut into tiles, with one launch for all tiles of a width."""

    def __init__(
        self, sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor], scales: Sequence[float]
    ) -> None:
        """Cut `target = source * scale`, two views of the same two-dimensional shape. All tensors have one type."""
        tiles: dict[int, list[tuple[int, ...]]] = {}
        tile_scales: dict[int, list[float]] = {}
        owners: dict[int, list[int]] = {}
        for index, (source, target, scale) in enumerate(zip(sources, targets, scales, strict=True)):
            for width, tile in _tiles(source, target):
                tiles.setdefault(width, []).append(tile)
                tile_scales.setdefault(width, []).append(scale)
                owners.setdefault(width, []).append(index)
        device, size, self._type = sources[0].device, sources[0].element_size(), _TYPES[sources[0].dtype]
        self._launches = []
        self._owners = [index for width in tiles for index in owners[width]]
        self._different = torch.zeros(len(self._owners), dtype=torch.int32, device=device)
        self._sums = torch.zeros(len(self._owners), dtype=torch.float32, device=device)
        for width, numbers in tiles.items():
            aligned = all(
                number % _ALIGNMENT == 0
                for tile in numbers
                for number in (*tile[:2], *(elements * size for elements in tile[3:]))
            )
            table = torch.tensor(numbers, dtype=torch.int64, device=device)
            factors = torch.tensor(tile_scales[width], dtype=torch.float32, device=device)
            self._launches.append((width, aligned, table, factors))

    def run(self) -> None:
        """Launch."""
        self._launch(compare=False)

    def compare(self) -> tuple[list[int], torch.Tensor]:
        """Return the indices of the copies whose target is not what `run` would write, and a sum over each tile."""
        self._launch(compare=True)
        differing = self._different.nonzero().flatten().tolist()
        return sorted({self._owners[tile] for tile in differing}), self._sums.clone()

    def _launch(self, *, compare: bool) -> None:
        done = 0
        for width, aligned, table, scales in self._launches:
            tiles = slice(done, done + len(table))
            _copy_tiles[(len(table),)](
                table,
                scales,
                self._different[tiles],
                self._sums[tiles],
                TYPE=self._type,
                ALIGNED=aligned,
                COMPARE=compare,
                ROWS=_TILE // width,
                COLUMNS=width,
            )
            done = tiles.stop


def _tiles(source: torch.Tensor, target: torch.Tensor) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield each tile: its width; addresses of source and target, rows, columns, strides of source and target."""
    size = source.element_size()
    if source.is_contiguous() and target.is_contiguous():
        source, target = source.reshape(1, -1), target.reshape(1, -1)
    if source.stride(1) != 1 or target.stride(1) != 1:
        raise ValueError(f"rows of neighbouring elements, got strides {source.stride()} and {target.stride()}")
    width = _TILE if source.shape[1] >= _WIDE else triton.next_power_of_2(source.shape[1])
    height = _TILE // width
    for row in range(0, source.shape[0], height):
        for column in range(0, source.shape[1], width):
            addresses = [t.data_ptr() + (row * t.stride(0) + column) * size for t in (source, target)]
            rows, columns = min(height, source.shape[0] - row), min(width, source.shape[1] - column)
            yield width, (addresses[0], addresses[1], rows, columns, source.stride(0), target.stride(0))


@triton.jit
def _copy_tiles(  # type: ignore[no-untyped-def]
    table,
    scales,
    different,
    sums,
    TYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    COMPARE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> Any:
    tile = tl.program_id(0)
    numbers = table + tile * 6
    source = tl.load(numbers).to(tl.pointer_type(TYPE))
    target = tl.load(numbers + 1).to(tl.pointer_type(TYPE))
    rows = tl.load(numbers + 2)
    columns = tl.load(numbers + 3)
    source_stride = tl.load(numbers + 4)
    target_stride = tl.load(numbers + 5)
    if ALIGNED:
        source = tl.multiple_of(source, 16)
        target = tl.multiple_of(target, 16)
        columns = tl.multiple_of(columns, 8)
        source_stride = tl.multiple_of(source_stride, 8)
        target_stride = tl.multiple_of(target_stride, 8)
    row = tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    inside = (row < rows) & (column < columns)
    values = tl.load(source + row * source_stride + column, mask=inside)
    # Scaled in float32 and rounded once, as vLLM's own loader does.
    scaled = (values.to(tl.float32) * tl.load(scales + tile)).to(TYPE)
    place = target + row * target_stride + column
    if COMPARE:
        found = tl.load(place, mask=inside, other=0.0)
        # A NaN is never equal, so it counts as a difference.
        unequal = inside & (found != scaled)
        tl.store(different + tile, tl.max(unequal.to(tl.int32)))
        tl.store(sums + tile, tl.sum(found.to(tl.float32)))
    else:
        tl.store(place, scaled, mask=inside)
