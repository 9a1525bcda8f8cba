"""The experts of a mixture with their adapters, in one product for all experts. Trainer and engine round alike by it.

A token's row is copied for each of its experts, and the rows are sorted by expert. A grouped product then multiplies
each expert's rows with that expert's matrix. With an expert's weights G, U and D, the adapters' A and B, and the
router's weight w,

    h = silu(x Gᵀ + (x A_gᵀ) B_gᵀ) * (x Uᵀ + (x A_uᵀ) B_uᵀ)
    y = sum over a token's experts of w (h Dᵀ + (h A_dᵀ) B_dᵀ)

If ranks share the experts, a token's row travels to the ranks that have some of its experts, and the sum of what they
make of it travels back (`backends/megatron/expert_rows.py`).

Shape suffixes: T tokens, K experts of a token, N = T K pairs of both, E experts, H hidden size, F an expert's inner
size, I inputs and O outputs of a layer, R rank of the adapter (of all parts), padded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch.nn.functional import grouped_mm, pad

from lorarl_trainer.kernels.experts import add_product, sort_by_expert
from lorarl_trainer.kernels.row_sums import sum_rows, sum_rows_backward
from lorarl_trainer.lora.experts import padded_rank


class Adapter(NamedTuple):
    """The adapters of one layer of all experts. What a token gets is scale B A x."""

    down_E_R_I: torch.Tensor
    up_E_O_R: torch.Tensor
    scale: float = 1.0


class Routing:
    """The pairs of a token and an expert, sorted by expert.

    Attributes:
        order_N: each pair's index into [T, K], flat.
        token_N: each pair's token.
        place_T_K: where each pair is, `NOWHERE` if it is left out.
        ends_E: where the pairs of each expert end.
    """

    def __init__(self, chosen_T_K: torch.Tensor, experts: int, first: int = 0, count: int | None = None) -> None:
        """Take the pairs of so many `experts` from the `first` on, `count` in all; None for all pairs."""
        order_N, self.place_T_K, self.ends_E = sort_by_expert(chosen_T_K, first, experts)
        self.order_N = order_N[:count]
        self.token_N = self.order_N // chosen_T_K.shape[1]


type Compute = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""What experts make of their rows, [N, H], given where each expert's rows end, [E]."""


class RowsOfRanks(Protocol):
    """How ranks that share a layer's experts compute each other's tokens, whose experts they know."""

    def mix(self, x_T_H: torch.Tensor, weights_T_K: torch.Tensor, own: Compute) -> torch.Tensor:
        """Return the weighted sums of what the experts of all ranks make of this rank's tokens, [T, H] (collective).

        `own` computes this rank's experts. The weights are of the tokens' type.
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
        return others.mix(x_T_H, weights_T_K, own)
    routing = Routing(chosen_T_K, len(down_E_H_F))
    y_N_H = own(spread(x_T_H, routing), routing.ends_E)
    return mixed(y_N_H, weights_T_K, routing)


def spread(x_T_H: torch.Tensor, routing: Routing) -> torch.Tensor:
    """Return a row of a token for each pair, [N, H], differentiable."""
    rows_N_H: torch.Tensor = _Spread.apply(x_T_H, routing)
    return rows_N_H


def mixed(y_N_H: torch.Tensor, weights_T_K: torch.Tensor, routing: Routing) -> torch.Tensor:
    """Return the weighted sum of each token's pairs, [T, H], differentiable."""
    mixed_T_H: torch.Tensor = _Mixed.apply(y_N_H, weights_T_K, routing)
    return mixed_T_H


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
    if adapter is None:
        return grouped_mm(x_N_I, weight_E_O_I.transpose(1, 2), offs=ends_E)
    output_N_O: torch.Tensor = _Adapted.apply(x_N_I, *adapter, weight_E_O_I, ends_E)
    return output_N_O


class _Adapted(torch.autograd.Function):
    """The grouped product with frozen weights and with their adapters, which are added without a copy of either."""

    @staticmethod
    def forward(
        ctx: Any,
        x_N_I: torch.Tensor,
        down_E_R_I: torch.Tensor,
        up_E_O_R: torch.Tensor,
        scale: float,
        weight_E_O_I: torch.Tensor,
        ends_E: torch.Tensor,
    ) -> torch.Tensor:
        low_N_R = _scaled(grouped_mm(x_N_I, down_E_R_I.transpose(1, 2), offs=ends_E), scale)
        ctx.scale, ctx.weight_E_O_I, ctx.ends_E = scale, weight_E_O_I, ends_E
        ctx.save_for_backward(x_N_I, down_E_R_I, up_E_O_R, low_N_R)
        return add_product(grouped_mm(x_N_I, weight_E_O_I.transpose(1, 2), offs=ends_E), low_N_R, up_E_O_R, ends_E)

    @staticmethod
    def backward(ctx: Any, by_output_N_O: torch.Tensor) -> Any:
        x_N_I, down_E_R_I, up_E_O_R, low_N_R = ctx.saved_tensors
        by_output_N_O, ends_E = by_output_N_O.contiguous(), ctx.ends_E
        by_low_N_R = _scaled(grouped_mm(by_output_N_O, up_E_O_R, offs=ends_E), ctx.scale)
        by_down, by_up, by_x = None, None, None
        if ctx.needs_input_grad[1]:
            by_down = grouped_mm(by_low_N_R.t(), x_N_I, offs=ends_E)
        if ctx.needs_input_grad[2]:
            by_up = grouped_mm(by_output_N_O.t(), low_N_R, offs=ends_E)
        if ctx.needs_input_grad[0]:
            by_x = grouped_mm(by_output_N_O, ctx.weight_E_O_I, offs=ends_E)
            add_product(by_x, by_low_N_R, down_E_R_I.transpose(1, 2), ends_E)
        return by_x, by_down, by_up, None, None, None


def _scaled(low_N_R: torch.Tensor, scale: float) -> torch.Tensor:
    return low_N_R if scale == 1.0 else low_N_R * scale


class _Spread(torch.autograd.Function):
    """Torch's own backward pass would add in any order."""

    @staticmethod
    def forward(ctx: Any, x_T_H: torch.Tensor, routing: Routing) -> torch.Tensor:
        ctx.routing = routing
        return x_T_H[routing.token_N]

    @staticmethod
    def backward(ctx: Any, by_rows_N_H: torch.Tensor) -> Any:
        return sum_rows(by_rows_N_H, ctx.routing.place_T_K), None


class _Mixed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y_N_H: torch.Tensor, weights_T_K: torch.Tensor, routing: Routing) -> torch.Tensor:
        ctx.order_N = routing.order_N
        ctx.save_for_backward(y_N_H, weights_T_K)
        return sum_rows(y_N_H, routing.place_T_K, weights_T_K)

    @staticmethod
    def backward(ctx: Any, by_mixed_T_H: torch.Tensor) -> Any:
        y_N_H, weights_T_K = ctx.saved_tensors
        return *sum_rows_backward(by_mixed_T_H, y_N_H, ctx.order_N, weights_T_K), None
