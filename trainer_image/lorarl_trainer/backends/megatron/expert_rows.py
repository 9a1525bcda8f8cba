"""Ranks that share the experts of a layer: each row travels to the rank that has its expert, and back.

Every rank has as many experts, in their order, so the rows that are sorted by expert are sorted by rank too. The rows
are computed as if one rank had all experts: a token's experts are added up where the token is, rounded alike.

Shape suffixes: N rows of this rank, M rows that come to it, H hidden size, E all experts, P ranks, L experts of a rank.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import pad

from lorarl_trainer.backends.megatron.collectives import Ranks
from lorarl_trainer.lora.grouped_experts import Compute, Routing, permuted


class ExpertRows:
    """See `RowsOfRanks`. All ranks make every pass together, with rows or without."""

    def __init__(self, ranks: Ranks) -> None:
        """`ranks` share the experts of each layer."""
        self._ranks, self.size = ranks, ranks.size

    def compute(self, x_N_H: torch.Tensor, ends_E: torch.Tensor, own: Compute) -> torch.Tensor:
        """See `RowsOfRanks.compute`. It waits for the device: how many rows travel is known there."""
        here_P_L = ends_E.diff(prepend=ends_E.new_zeros(1)).view(self.size, -1)
        come_P_L = torch.empty_like(here_P_L)
        dist.all_to_all_single(come_P_L, here_P_L, group=self._ranks.group)
        sent, received = torch.stack([here_P_L.sum(1), come_P_L.sum(1)]).tolist()
        x_M_H, count = self._exchange(_needing_gradient(x_N_H), sent, received), sum(received)
        # By rank, and each rank's by expert. Now by expert.
        numbers = torch.arange(come_P_L.shape[1], device=come_P_L.device).repeat(self.size)
        of_expert_M = numbers.repeat_interleave(come_P_L.flatten(), output_size=count)
        if not count:  # products of no rows have no gradient, so a row of zeros stands for them
            x_M_H, of_expert_M = pad(x_M_H, (0, 0, 0, 1)), pad(of_expert_M, (0, 1))
        routing = Routing.of(of_expert_M, come_P_L.shape[1])
        y_M_H = own(permuted(x_M_H, routing.order_N, routing.inverse_N), routing.ends_E)
        y_M_H = permuted(y_M_H, routing.inverse_N, routing.order_N)
        return self._exchange(y_M_H if count else y_M_H[:0], received, sent)

    def _exchange(self, rows: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
        arrived: torch.Tensor = _Exchanged.apply(rows, sent, received, self._ranks.group)
        return arrived


def _needing_gradient(x_N_H: torch.Tensor) -> torch.Tensor:
    """Return rows that need a gradient if any may be needed: another rank's experts may have adapters, and wait for it.

    Before the first adapter of a model nothing needs one.
    """
    if torch.is_grad_enabled() and not x_N_H.requires_grad:
        return x_N_H.detach().requires_grad_()
    return x_N_H


class _Exchanged(torch.autograd.Function):
    """The rows that other ranks send, in their order, and in the backward pass their gradients."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, sent: list[int], received: list[int], group: Any) -> torch.Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        arrived = rows.new_empty(sum(received), rows.shape[1])
        dist.all_to_all_single(arrived, rows.contiguous(), received, sent, group=group)
        return arrived

    @staticmethod
    def backward(ctx: Any, by_arrived: torch.Tensor) -> Any:
        by_rows = by_arrived.new_empty(sum(ctx.sent), by_arrived.shape[1])
        dist.all_to_all_single(by_rows, by_arrived.contiguous(), ctx.sent, ctx.received, group=ctx.group)
        return by_rows, None, None, None
