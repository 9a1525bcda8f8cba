"""Hundreds of small copies in one launch: each program of the kernel moves one stretch of neighbouring elements.

Launched one by one they would take longer to launch than to run: an adapter of a 7B model is 392 tensors of 0.4 MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from lorarl_trainer.rollout.copy_plan import Copy

_STRETCH = 4096
"""Most elements that one program moves: 8 KB in bf16, so that even a small adapter keeps every multiprocessor busy."""
_ALIGNMENT = 16
"""Bytes that a GPU loads at once, where it knows that they are aligned."""


class CopyKernel:
    """The copies of a plan, cut into stretches."""

    def __init__(self, copies: Sequence[Copy]) -> None:
        """Cut them. All tensors have one type."""
        stretches = [stretch for copy in copies for stretch in _stretches(copy)]
        device, size = copies[0].source.device, copies[0].source.element_size()
        sources, targets, lengths, scales = zip(*stretches, strict=True)
        self._sources = torch.tensor(sources, dtype=torch.int64, device=device)
        self._targets = torch.tensor(targets, dtype=torch.int64, device=device)
        self._lengths = torch.tensor(lengths, dtype=torch.int32, device=device)
        self._scales = torch.tensor(scales, dtype=torch.float32, device=device)
        self._aligned = all(address % _ALIGNMENT == 0 for address in (*sources, *targets)) and all(
            length * size % _ALIGNMENT == 0 for length in lengths
        )
        self._type = {torch.bfloat16: tl.bfloat16, torch.float32: tl.float32, torch.float16: tl.float16}[copies[0].source.dtype]

    def run(self) -> None:
        """Launch."""
        _copy_stretches[(len(self._sources),)](
            self._sources, self._targets, self._lengths, self._scales, TYPE=self._type, ALIGNED=self._aligned, STRETCH=_STRETCH
        )


def _stretches(copy: Copy) -> list[tuple[int, int, int, float]]:
    """Return source address, target address, number of elements and scale of each stretch."""
    source, target, size = copy.source, copy.target, copy.source.element_size()
    if source.is_contiguous() and target.is_contiguous():
        source, target = source.reshape(1, -1), target.reshape(1, -1)
    if source.stride(1) != 1 or target.stride(1) != 1:
        raise ValueError(f"rows of neighbouring elements, got strides {source.stride()} and {target.stride()}")
    rows, columns = source.shape
    found = []
    for row in range(rows):
        for start in range(0, columns, _STRETCH):
            addresses = [t.data_ptr() + (row * t.stride(0) + start) * size for t in (source, target)]
            found.append((addresses[0], addresses[1], min(_STRETCH, columns - start), copy.scale))
    return found


@triton.jit
def _copy_stretches(  # type: ignore[no-untyped-def]
    sources, targets, lengths, scales, TYPE: tl.constexpr, ALIGNED: tl.constexpr, STRETCH: tl.constexpr
) -> Any:
    stretch = tl.program_id(0)
    source = tl.load(sources + stretch).to(tl.pointer_type(TYPE))
    target = tl.load(targets + stretch).to(tl.pointer_type(TYPE))
    length = tl.load(lengths + stretch)
    scale = tl.load(scales + stretch)
    if ALIGNED:
        source = tl.multiple_of(source, 16)
        target = tl.multiple_of(target, 16)
        length = tl.multiple_of(length, 8)
    offsets = tl.arange(0, STRETCH)
    inside = offsets < length
    values = tl.load(source + offsets, mask=inside)
    # Scaled in float32 and rounded once, as vLLM's own loader does.
    tl.store(target + offsets, (values.to(tl.float32) * scale).to(TYPE), mask=inside)
