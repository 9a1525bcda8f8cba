"""A list of copies on one device, made once and run after every update: on a GPU, one kernel that runs at the speed of memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Copy:
    """`target[...] = source * scale`: two views of the same two-dimensional shape and type."""

    source: torch.Tensor
    target: torch.Tensor
    scale: float


class CopyPlan:
    """Copies that are always run together. The views keep their storage: it must not be moved."""

    def __init__(self, copies: Sequence[Copy]) -> None:
        """Plan them. All on one device."""
        self._copies = copies
        self._kernel = None
        if copies and copies[0].source.is_cuda:
            from lorarl_trainer.engine.sync.copy_kernel import CopyKernel

            self._kernel = CopyKernel(copies)

    @property
    def nbytes(self) -> int:
        """Bytes that a run writes."""
        return sum(copy.target.numel() * copy.target.element_size() for copy in self._copies)

    @torch.no_grad()
    def run(self) -> None:
        """Make the copies, in the current stream."""
        if self._kernel is not None:
            self._kernel.run()
            return
        for copy in self._copies:
            copy.target.copy_(copy.source)
            if copy.scale != 1.0:
                copy.target.mul_(copy.scale)
