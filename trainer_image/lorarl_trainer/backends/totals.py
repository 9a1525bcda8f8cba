"""Sums over the micro-batches of an update.

Shape suffix: N response tokens of a micro-batch, sample by sample.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist

from lorarl_trainer.samples.agreement import DEPTHS, Agreement


class Totals:
    """Sums over micro-batches, kept on the device: of columns, and of engine's and trainer's differences by depth."""

    def __init__(self, device: torch.device) -> None:
        self._sums: dict[str, torch.Tensor] = {}
        self._by_depth = torch.zeros(3, DEPTHS, dtype=torch.float64, device=device)
        self._largest = torch.zeros((), dtype=torch.float64, device=device)

    @property
    def empty(self) -> bool:
        """Whether nothing has been added."""
        return not self._sums

    def add(self, columns: Mapping[str, torch.Tensor]) -> None:
        """Add the columns of a micro-batch, [N] each."""
        for name, column_N in columns.items():
            total = column_N.double().sum()
            self._sums[name] = self._sums[name] + total if name in self._sums else total

    def compare(self, engine_N: torch.Tensor, trainer_N: torch.Tensor, depth_N: torch.Tensor) -> None:
        """Compare log-probabilities of the same tokens, if there are any: see `Agreement`."""
        if not len(engine_N):
            return
        difference_N = (engine_N - trainer_N).abs().double()
        columns = torch.stack([difference_N, 1 - engine_N.double().exp(), torch.ones_like(difference_N)])
        self._by_depth.index_add_(1, depth_N, columns)
        self._largest = torch.maximum(self._largest, difference_N.max())

    def reduce(self, group: object) -> None:
        """Add up over the workers of a group (collective)."""
        names = sorted(self._sums)
        sums = torch.cat([torch.stack([self._sums[name] for name in names]), self._by_depth.flatten()])
        dist.all_reduce(sums, group=group)
        self._sums = dict(zip(names, sums[: len(names)], strict=True))
        self._by_depth = sums[len(names) :].view_as(self._by_depth)
        dist.all_reduce(self._largest, op=dist.ReduceOp.MAX, group=group)

    def sums(self) -> dict[str, float]:
        """Return the sums by column."""
        return dict(zip(self._sums, torch.stack(list(self._sums.values())).tolist(), strict=True))

    def agreement(self) -> Agreement | None:
        """Return the comparison; None if nothing was compared."""
        differences, uncertainty, tokens = self._by_depth.cpu().numpy()
        return Agreement(differences, uncertainty, tokens, self._largest.item()) if tokens.any() else None
