"""Copies on one device, planned once and run after every update: on a GPU by one kernel, at memory speed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from lorarl_trainer.lora.blocks import Copy


@dataclass(frozen=True)
class Compared:
    """How a plan's targets compare with what a run would write.

    Attributes:
        differing: the indices of the copies that differ in some element.
        sums: sums over parts of the targets, always the same parts: equal as long as no target changes.
    """

    differing: Sequence[int]
    sums: torch.Tensor


class CopyPlan:
    """Copies that are always run together. Their tensors must keep their storage."""

    def __init__(self, copies: Sequence[Copy]) -> None:
        """Plan them. All tensors are on one device and have one type."""
        self.copies = copies
        self._run, self._compare = _on_gpu(copies) if copies and copies[0].source.is_cuda else _plainly(copies)

    @property
    def nbytes(self) -> int:
        """Bytes that a run writes."""
        return sum(copy.target.numel() * copy.target.element_size() for copy in self.copies)

    @torch.no_grad()
    def run(self) -> None:
        """Make the copies, in the current stream."""
        self._run()

    @torch.no_grad()
    def compare(self) -> Compared:
        """Compare every element of the targets with what a run would write now, bit by bit."""
        return self._compare()


_Functions = tuple[Callable[[], None], Callable[[], Compared]]


def _on_gpu(copies: Sequence[Copy]) -> _Functions:
    """Return what makes these copies and what compares them: one kernel each."""
    from lorarl_trainer.engine.sync.copy_kernel import CopyKernel  # needs Triton, which a CPU has no use for

    kernel = CopyKernel(
        [copy.source for copy in copies], [copy.target for copy in copies], [copy.scale for copy in copies]
    )

    def compare() -> Compared:
        return Compared(*kernel.compare())

    return kernel.run, compare


def _plainly(copies: Sequence[Copy]) -> _Functions:
    """Return the plain twins of the kernels."""

    def run() -> None:
        for copy in copies:
            copy.target.copy_(copy.source)
            if copy.scale != 1.0:
                copy.target.mul_(copy.scale)

    def compare() -> Compared:
        differing = [
            index
            for index, copy in enumerate(copies)
            if not torch.equal(copy.target, copy.source if copy.scale == 1.0 else copy.source * copy.scale)
        ]
        return Compared(differing, torch.stack([copy.target.sum() for copy in copies]))

    return run, compare
