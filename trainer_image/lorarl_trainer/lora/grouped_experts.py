"""The experts of a mixture with their adapters, in one product for all experts. Trainer and engine round alike by it.

A token's row is copied for each of its experts, and the rows are sorted by expert. A grouped product then multiplies
each expert's rows with that expert's matrix. With an expert's weights G, U and D, the adapters' A and B, and the
router's weight w,

    h = silu(x Gᵀ + (x A_gᵀ) B_gᵀ) * (x Uᵀ + (x A_uᵀ) B_uᵀ)
    y = sum over a token's experts of w (h Dᵀ + (h A_dᵀ) B_dᵀ)

If ranks share the experts, a token's row travels to the ranks that have some of its experts, and the sum of what they
make of it travels back (`backends/megatron/expert_rows.py`).

Shape suffixes: T tokens, K experts of a token, N = T K rows, E experts, H hidden size, F an expert's inner size, I
inputs and O outputs of a layer, R rank of the adapter (of all parts), padded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch.nn.functional import grouped_mm, pad

from lorarl_trainer.lora.experts import padded_rank


class Adapter(NamedTuple):
    """The adapters of one layer of all experts. What a token gets is scale B A x."""

    down_E_R_I: torch.Tensor
    up_E_O_R: torch.Tensor
    scale: float = 1.0


class Routing(NamedTuple):
    """Which rows each expert gets: `order` sorts the rows, and `ends` has where each expert's rows end."""

    order_N: torch.Tensor
    inverse_N: torch.Tensor
    ends_E: torch.Tensor

    @classmethod
    def of(cls, chosen_T_K: torch.Tensor, experts: int) -> Routing:
        """Sort rows by expert. Nothing here waits for a GPU, so CUDA graphs can hold it."""
        expert_N, order_N = chosen_T_K.flatten().sort(stable=True)
        rows = torch.arange(len(order_N), device=order_N.device)
        inverse_N = torch.empty_like(order_N).scatter_(0, order_N, rows)
        numbers = torch.arange(experts, device=order_N.device, dtype=expert_N.dtype)
        return cls(order_N, inverse_N, torch.searchsorted(expert_N, numbers, right=True, out_int32=True))


type Compute = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""What experts make of their rows, [N, H], given where each expert's rows end, [E]."""


class RowsOfRanks(Protocol):
    """How ranks that share a layer's experts compute each other's tokens."""

    def mix(
        self, x_T_H: torch.Tensor, weights_T_K: torch.Tensor, chosen_T_K: torch.Tensor, experts: int, own: Compute
    ) -> torch.Tensor:
        """Return the weighted sums of what the experts of all ranks make of this rank's tokens, [T, H] (collective).

        Each rank has so many `experts`; `own` computes those of this rank. The weights are of the tokens' type.
        """


def choose_experts(logits_T_E: torch.Tensor, active: int) -> torch.Tensor:
    """Return the experts of each token with the highest logits, [T, K]."""
    chosen_T_K: torch.Tensor = logits_T_E.float().topk(active).indices
    return chosen_T_K


def weights_of(logits_T_E: torch.Tensor, chosen_T_K: torch.Tensor, *, shares_of_all: bool) -> torch.Tensor:
    """Return the weights of each token's experts, [T, K].

    They are shares of the softmax over a token's experts, or over all of them (`norm_topk_prob: false`).
    """
    logits_T_E = logits_T_E.float()
    if shares_of_all:
        return logits_T_E.softmax(-1).gather(-1, chosen_T_K)
    return logits_T_E.gather(-1, chosen_T_K).softmax(-1)


def compute_mixture(
    x_T_H: torch.Tensor,
    weights_T_K: torch.Tensor,
    chosen_T_K: torch.Tensor,
    gate_up_E_2F_H: torch.Tensor,
    down_E_H_F: torch.Tensor,
    adapters: tuple[Adapter | None, Adapter | None],
    activate: Callable[[torch.Tensor], torch.Tensor],
    others: RowsOfRanks | None = None,
) -> torch.Tensor:
    """Return the output of a mixture's experts, [T, H], differentiable (collective if `others` share them).

    Args:
        x_T_H: tokens.
        weights_T_K: of a token's experts.
        chosen_T_K: the experts of each token.
        gate_up_E_2F_H: each expert's gate, then its up.
        down_E_H_F: each expert's down.
        adapters: of gate and up as one layer, and of down; None for none.
        activate: SwiGLU, of [N, 2F].
        others: the ranks that share the experts; weights and adapters are those of this rank's. None: it has all.
    """
    # In the precision of y: a copy of y in fp32 would be the largest tensor of a layer.
    weights_T_K = weights_T_K.to(x_T_H.dtype)
    own = partial(_compute_rows, weights=(gate_up_E_2F_H, down_E_H_F), adapters=adapters, activate=activate)
    if others is not None:
        return others.mix(x_T_H, weights_T_K, chosen_T_K, len(down_E_H_F), own)
    routing = Routing.of(chosen_T_K, len(down_E_H_F))
    y_N_H = own(_Spread.apply(x_T_H, routing, chosen_T_K.shape[1]), routing.ends_E)
    y_T_K_H = _Permuted.apply(y_N_H, routing.inverse_N, routing.order_N).view(*chosen_T_K.shape, -1)
    return torch.bmm(weights_T_K[:, None], y_T_K_H)[:, 0]


def joined_adapter(downs: Sequence[torch.Tensor], ups: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return A [E, R, I] and B [E, O, R] of a layer of several parts, given each part's: B is block-diagonal.

    Zeros fill the rank up to `padded_rank`.
    """
    down_E_R_I, first, rows = torch.cat(list(downs), dim=1), 0, []
    rank = padded_rank(down_E_R_I.shape[1])
    for up in ups:
        rows.append(pad(up, (first, rank - first - up.shape[2])))
        first += up.shape[2]
    return pad(down_E_R_I, (0, 0, 0, rank - first)), torch.cat(rows, dim=1)


def _compute_rows(
    x_N_H: torch.Tensor,
    ends_E: torch.Tensor,
    weights: tuple[torch.Tensor, torch.Tensor],
    adapters: tuple[Adapter | None, Adapter | None],
    activate: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    product_N_F = activate(_multiply(x_N_H, weights[0], adapters[0], ends_E))
    return _multiply(product_N_F, weights[1], adapters[1], ends_E)


def _multiply(
    x_N_I: torch.Tensor, weight_E_O_I: torch.Tensor, adapter: Adapter | None, ends_E: torch.Tensor
) -> torch.Tensor:
    output_N_O = grouped_mm(x_N_I, weight_E_O_I.transpose(1, 2), offs=ends_E)
    if adapter is None:
        return output_N_O
    low_N_R = grouped_mm(x_N_I, adapter.down_E_R_I.transpose(1, 2), offs=ends_E)
    if adapter.scale != 1.0:
        low_N_R = low_N_R * adapter.scale
    return output_N_O + grouped_mm(low_N_R, adapter.up_E_O_R.transpose(1, 2), offs=ends_E)


class _Spread(torch.autograd.Function):
    """A row of a token for each of its experts, sorted. Torch's own backward pass would add in any order."""

    @staticmethod
    def forward(ctx: Any, x_T_H: torch.Tensor, routing: Routing, active: int) -> torch.Tensor:
        ctx.inverse, ctx.active = routing.inverse_N, active
        return x_T_H[routing.order_N // active]

    @staticmethod
    def backward(ctx: Any, by_rows_N_H: torch.Tensor) -> Any:
        return by_rows_N_H[ctx.inverse].unflatten(0, (-1, ctx.active)).sum(1), None, None


class _Permuted(torch.autograd.Function):
    """Rows in another order. Torch's own backward pass would add them to zeros, one by one."""

    @staticmethod
    def forward(ctx: Any, rows_N_H: torch.Tensor, order_N: torch.Tensor, inverse_N: torch.Tensor) -> torch.Tensor:
        ctx.inverse = inverse_N
        return rows_N_H[order_N]

    @staticmethod
    def backward(ctx: Any, by_rows_N_H: torch.Tensor) -> Any:
        return by_rows_N_H[ctx.inverse], None, None
