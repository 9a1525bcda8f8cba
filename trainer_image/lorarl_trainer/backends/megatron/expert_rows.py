"""Ranks that share the experts of a layer: a token's row travels once to each rank that has experts of it, and back.

Every rank has as many experts, in their order. With a row go the token's experts and their weights. A rank adds up what
its experts make of a token, and sends one row back; the token's rank adds those up. So at most min(K, P) rows of a
token travel each way, forward and backward, where a row for each expert would be K. A rank's sum is made in float32 and
travels in the type of the rows, as the sum of all leaves the layer: with P ranks there are P roundings more.

One exchange of sizes precedes that of the rows. The host waits for it, and for nothing else; the device gathers the
rows meanwhile. Where a rollout's routing is followed, hosts count the rows of all layers before a pass and exchange the
counts (`rows_ahead`). Then no layer waits, and the host stays ahead of the device.

The least time of a layer of Qwen3-30B-A3B's shape in bf16 (hidden 2048, 8 of 128 experts of inner size 768), forward
and backward, of 8,192 tokens over two H100 (`benchmarks/bench_experts.py` computes it for others):

    products  8192 x 8 / 2 rows x 3 matrices x 2 passes x 2 x 2048 x 768 = 0.62e12 a rank: 0.63 ms at 989e12/s
    rows      4 exchanges x 4096 x 0.997 x 2048 x 2 bytes = 67 MB a rank each way: 0.15 ms at 450 GB/s

One rank alone takes 1.25 ms. As the rows of a layer do not travel during its products, two are at most 1.6 times as
fast in the experts; a row for each expert (4 x 4096 x 4 rows, 268 MB, 0.60 ms) would make that 1.0.

Shape suffixes: T tokens of this rank, N rows that it sends, M rows that come to it, K experts of a token, J pairs of a
row that came and an expert of this rank, H hidden size, P ranks.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from lorarl_trainer.backends.megatron.collectives import Ranks
from lorarl_trainer.kernels.row_sums import sum_rows
from lorarl_trainer.lora.grouped_experts import Compute, Routing

_WHOLE_NUMBERS = {2: torch.int16, 4: torch.int32}
"""Of as many bytes as the elements of a row: the experts' numbers travel in it."""


def _needing_gradient(x_T_H: torch.Tensor) -> torch.Tensor:
    """Return rows that need a gradient if any may be needed: another rank's experts may have adapters, and wait for it.

    Before the first adapter of a model nothing needs one.
    """
    if torch.is_grad_enabled() and not x_T_H.requires_grad:
        return x_T_H.detach().requires_grad_()
    return x_T_H


class Sizes(NamedTuple):
    """How many rows go to each rank and come from it, and how many pairs of them and an expert this rank computes."""

    sent_P: list[int]
    received_P: list[int]
    pairs: int

    @classmethod
    def of(cls, sent_P_2: Any, received_P_2: Any) -> Sizes:
        """Take rows and pairs by rank, on the host."""
        received = received_P_2.tolist()
        return cls([rows for rows, _ in sent_P_2.tolist()], [rows for rows, _ in received], sum(n for _, n in received))


class Places(NamedTuple):
    """The rows that a rank sends of a layer's tokens.

    Attributes:
        counts_P_2: the rows to each rank, and the pairs of them and an expert there.
        place_T_P: where a token's row to a rank is, `NOWHERE` if it has none.
        token_N: each row's token; behind the last row it means nothing.
    """

    counts_P_2: torch.Tensor
    place_T_P: torch.Tensor
    token_N: torch.Tensor

    @classmethod
    def of(cls, chosen_L_T_K: torch.Tensor, experts: int, ranks: int) -> list[Places]:
        """Sort each layer's rows by rank and then by token. Each rank has so many `experts`."""
        (layers, tokens, active), device = chosen_L_T_K.shape, chosen_L_T_K.device
        rank_L_T_K = chosen_L_T_K // experts
        pairs_L_P_T = (rank_L_T_K[:, None] == torch.arange(ranks, device=device)[:, None, None]).sum(3)
        goes_L_P_T = pairs_L_P_T.clamp(max=1)
        counts_L_P_2 = torch.stack([goes_L_P_T, pairs_L_P_T], dim=2).sum(3)
        # The rows are numbered from 1; 0 is none. They are `most` at most.
        number_L_P_T = goes_L_P_T * goes_L_P_T.flatten(1).cumsum(1).view_as(goes_L_P_T)
        most, token = tokens * min(ranks, active), torch.arange(tokens, device=device).repeat(ranks)
        numbered = torch.zeros(layers, most + 1, dtype=torch.int64, device=device)
        token_L_N = numbered.scatter_(1, number_L_P_T.flatten(1), token.expand(layers, -1))[:, 1:]
        place_L_T_P = (number_L_P_T - 1).transpose(1, 2).contiguous()
        return [cls(*of_layer) for of_layer in zip(counts_L_P_2, place_L_T_P, token_L_N, strict=True)]


class Trip:
    """The way of a layer's rows to the ranks that have their experts, and back: see `RowsOfRanks`.

    All ranks make every pass together, with rows or without. A pass that is made again takes the trip of the first
    one, and so sends no sizes and waits for none.
    """

    def __init__(
        self, ranks: Ranks, chosen_T_K: torch.Tensor, experts: int, ahead: tuple[Places, Sizes] | None = None
    ) -> None:
        """Take each token's experts, and its rows' places and sizes; without those, find them (collective).

        Each rank has so many `experts`.
        """
        self.chosen_T_K, self._group = chosen_T_K, ranks.group
        self._experts, self._first = experts, ranks.rank * experts
        if ahead is None:
            places = Places.of(chosen_T_K[None], experts, ranks.size)[0]
            self._on_their_way = self._exchanged(places.counts_P_2)
        else:
            places, self.sizes = ahead
        self._place_T_P, self._token_N = places.place_T_P, places.token_N

    def mix(self, x_T_H: torch.Tensor, weights_T_K: torch.Tensor, own: Compute) -> torch.Tensor:
        x_M_H, weights_M_K, chosen_M_K = _Sent.apply(_needing_gradient(x_T_H), weights_T_K, self.chosen_T_K, self)
        pairs = Routing(chosen_M_K, self._experts, self._first, self.sizes.pairs)
        y_T_H: torch.Tensor = _Returned.apply(own(x_M_H, weights_M_K, pairs), self)
        return y_T_H

    def there(self, x_T_H: torch.Tensor) -> torch.Tensor:
        """Return the rows that other ranks send here, [M, H], given those of this rank's tokens (collective)."""
        rows_N_H = x_T_H[self._token_N]
        return self._exchange(rows_N_H[: sum(self.sizes.sent_P)], self.sizes.sent_P, self.sizes.received_P)

    def back(self, rows_M_H: torch.Tensor) -> torch.Tensor:
        """Return for each token the sum of what all ranks made of its row, [T, H] (collective)."""
        return sum_rows(self._exchange(rows_M_H, self.sizes.received_P, self.sizes.sent_P), self._place_T_P)

    @cached_property
    def sizes(self) -> Sizes:
        """The sizes, for which the host waits if they were not known."""
        (host, copied), self._on_their_way = self._on_their_way, None
        if copied is not None:
            copied.synchronize()
        return Sizes.of(*host)

    def _exchanged(self, here_P_2: torch.Tensor) -> Any:
        """Return rows and pairs by rank, sent and received, on their way to the host, and when they are there."""
        sizes = torch.stack([here_P_2, here_P_2])
        dist.all_to_all_single(sizes[1], here_P_2, group=self._group)
        if not sizes.is_cuda:
            return sizes, None
        host, copied = sizes.to("cpu", non_blocking=True), torch.cuda.Event()
        copied.record()
        return host, copied

    def _exchange(self, rows: torch.Tensor, sent_P: list[int], received_P: list[int]) -> torch.Tensor:
        arrived = rows.new_empty(sum(received_P), rows.shape[1])
        dist.all_to_all_single(arrived, rows.contiguous(), received_P, sent_P, group=self._group)
        return arrived


class _Sent(torch.autograd.Function):
    """Rows of tokens, with their experts and weights, that come to this rank; and back their gradients."""

    @staticmethod
    def forward(
        ctx: Any, x_T_H: torch.Tensor, weights_T_K: torch.Tensor, chosen_T_K: torch.Tensor, trip: Trip
    ) -> tuple[torch.Tensor, ...]:
        ctx.trip, ctx.sizes = trip, (x_T_H.shape[1], weights_T_K.shape[1])
        # The experts' numbers travel as the bits of a row's elements.
        numbers = _WHOLE_NUMBERS[x_T_H.element_size()]
        chosen_T_K = chosen_T_K.to(numbers).view(x_T_H.dtype)
        arrived = trip.there(torch.cat([x_T_H, weights_T_K, chosen_T_K], dim=1))
        x_M_H, weights_M_K, chosen_M_K = arrived.split([*ctx.sizes, ctx.sizes[1]], dim=1)
        chosen_M_K = chosen_M_K.contiguous().view(numbers)
        ctx.mark_non_differentiable(chosen_M_K)
        return x_M_H, weights_M_K.contiguous(), chosen_M_K

    @staticmethod
    def backward(ctx: Any, by_x_M_H: torch.Tensor, by_weights_M_K: torch.Tensor, _: Any) -> Any:
        by_both = ctx.trip.back(torch.cat([by_x_M_H, by_weights_M_K], dim=1))
        by_x_T_H, by_weights_T_K = by_both.split(ctx.sizes, dim=1)
        return by_x_T_H.contiguous(), by_weights_T_K, None, None


class _Returned(torch.autograd.Function):
    """The sums over all ranks of what they made of a token, at the token's rank; and there their gradients."""

    @staticmethod
    def forward(ctx: Any, y_M_H: torch.Tensor, trip: Trip) -> torch.Tensor:
        ctx.trip = trip
        return trip.back(y_M_H)

    @staticmethod
    def backward(ctx: Any, by_y_T_H: torch.Tensor) -> Any:
        return ctx.trip.there(by_y_T_H), None
