"""Copies on one device, planned once and run after every update: on a GPU by one kernel, at memory speed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from lorarl_trainer.lora.blocks import Copy


class CopyPlan:
    """Copies that are always run together. Their tensors must keep their storage."""

    def __init__(self, copies: Sequence[Copy]) -> None:
        """Plan them. All tensors are on one device and have one type."""
        self._copies = copies
        self._run = _runner(
            [copy.source for copy in copies], [copy.target for copy in copies], [copy.scale for copy in copies]
        )

    @property
    def nbytes(self) -> int:
        """Bytes that a run writes."""
        return sum(copy.target.numel() * copy.target.element_size() for copy in self._copies)

    @torch.no_grad()
    def run(self) -> None:
        """Make the copies, in the current stream."""
        self._run()


def _runner(
    sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor], scales: Sequence[float]
) -> Callable[[], None]:
    """Return what makes these copies, always the same ones: the kernel on a GPU, its plain twin elsewhere."""
    if sources and sources[0].is_cuda:
        from lorarl_trainer.engine.sync.copy_kernel import CopyKernel  # needs Triton, which a CPU has no use for

        return CopyKernel(sources, targets, scales).run
    return partial(_copy_plainly, sources, targets, scales)


def _copy_plainly(sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor], scales: Sequence[float]) -> None:
    for source, target, scale in zip(sources, targets, scales, strict=True):
        target.copy_(source)
        if scale != 1.0:
            target.mul_(scale)
