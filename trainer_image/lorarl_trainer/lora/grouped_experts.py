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

from lorarl_trainer.kernels.experts import add_product, sort_by_expert, weighted_swiglu_backward
from lorarl_trainer.kernels.operations import swiglu
from lorarl_trainer.kernels.row_sums import sum_rows
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


type Compute = Callable[[torch.Tensor, torch.Tensor, Routing], torch.Tensor]
"""What experts make of tokens, [T, H], in all: given those, [T, H], the experts' weights, [T, K], and the pairs."""


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
        others: the ranks that share the experts; weights and adapters are those of this rank's. None: it has all.
    """
    # In the precision of y: a copy of y in fp32 would be the largest tensor of a layer.
    weights_T_K = weights_T_K.to(x_T_H.dtype)
    own = partial(_mix, layers=(_Layer(gate_up_E_2F_H, adapters[0]), _Layer(down_E_H_F, adapters[1])))
    if others is not None:
        return others.mix(x_T_H, weights_T_K, own)
    return own(x_T_H, weights_T_K, Routing(chosen_T_K, len(down_E_H_F)))


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


class _Layer(NamedTuple):
    """A linear layer of all experts, whose weights are frozen, and its adapters."""

    weight_E_O_I: torch.Tensor
    adapter: Adapter | None


def _mix(
    x_T_H: torch.Tensor, weights_T_K: torch.Tensor, routing: Routing, layers: tuple[_Layer, _Layer]
) -> torch.Tensor:
    matrices = [part for layer in layers for part in (layer.adapter[:2] if layer.adapter else (None, None))]
    mixed_T_H: torch.Tensor = _Mixture.apply(x_T_H, weights_T_K, routing, layers, *matrices)
    return mixed_T_H


class _Mixture(torch.autograd.Function):
    """The products of all experts and their weighted sums.

    It keeps each token once, not once for each of its experts, and for each expert only gate and up. Copies and SwiGLU
    are cheap to make again. What an expert returns is not needed: the gradient by its weight w is <g, y>, and that is
    <g (D + B_d A_d), h>.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_T_H: torch.Tensor,
        weights_T_K: torch.Tensor,
        routing: Routing,
        layers: tuple[_Layer, _Layer],
        *matrices: torch.Tensor | None,
    ) -> torch.Tensor:
        gate_up, down = layers
        # Adapters are saved as tensors, so that a checkpoint of the layer can drop them.
        ctx.routing, ctx.frozen = routing, [(one.weight_E_O_I, one.adapter and one.adapter.scale) for one in layers]
        if not len(routing.order_N):  # of no rows there are no products
            ctx.save_for_backward(x_T_H, weights_T_K, None, None, None, *matrices)
            return torch.zeros_like(x_T_H)
        gate_up_N_2F, low_N_R = _multiply(x_T_H[routing.token_N], gate_up, routing.ends_E)
        y_N_H, second_low_N_R = _multiply(swiglu(gate_up_N_2F), down, routing.ends_E)
        ctx.save_for_backward(x_T_H, weights_T_K, gate_up_N_2F, low_N_R, second_low_N_R, *matrices)
        return sum_rows(y_N_H, routing.place_T_K, weights_T_K)

    @staticmethod
    def backward(ctx: Any, by_mixed_T_H: torch.Tensor) -> Any:
        x_T_H, weights_T_K, gate_up_N_2F, low_N_R, second_low_N_R, *matrices = ctx.saved_tensors
        routing = ctx.routing
        gate_up, down = (
            _Layer(weight_E_O_I, None if scale is None else Adapter(a_E_R_I, b_E_O_R, scale))
            for (weight_E_O_I, scale), a_E_R_I, b_E_O_R in zip(ctx.frozen, matrices[::2], matrices[1::2], strict=True)
        )
        if gate_up_N_2F is None:
            none = [torch.zeros_like(one) if one is not None else None for one in matrices]
            return torch.zeros_like(x_T_H), torch.zeros_like(weights_T_K), None, None, *none
        ends_E, by_y_N_H = routing.ends_E, by_mixed_T_H[routing.token_N]  # not yet times the weights
        by_product_N_F, by_low_N_R = _multiply_back(by_y_N_H, down, ends_E)
        by_gate_up_N_2F, by_weights_T_K, product_N_F = weighted_swiglu_backward(
            gate_up_N_2F, by_product_N_F, routing.order_N, weights_T_K
        )
        if second_low_N_R is not None:
            second_low_N_R = second_low_N_R * weights_T_K.flatten()[routing.order_N, None]
        by_down = _by_adapter(product_N_F, second_low_N_R, by_y_N_H, by_low_N_R, ends_E)
        del by_y_N_H, by_product_N_F, product_N_F
        by_x_N_H, by_low_N_R = _multiply_back(by_gate_up_N_2F, gate_up, ends_E)
        by_x_T_H = sum_rows(by_x_N_H, routing.place_T_K)
        del by_x_N_H
        by_gate_up = _by_adapter(x_T_H[routing.token_N], low_N_R, by_gate_up_N_2F, by_low_N_R, ends_E)
        return by_x_T_H, by_weights_T_K, None, None, *by_gate_up, *by_down


def _multiply(x_N_I: torch.Tensor, layer: _Layer, ends_E: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return a layer's outputs, [N, O], and what its adapters' A make of the inputs."""
    output_N_O, adapter = grouped_mm(x_N_I, layer.weight_E_O_I.transpose(1, 2), offs=ends_E), layer.adapter
    if adapter is None:
        return output_N_O, None
    low_N_R = _scaled(grouped_mm(x_N_I, adapter.down_E_R_I.transpose(1, 2), offs=ends_E), adapter.scale)
    return add_product(output_N_O, low_N_R, adapter.up_E_O_R, ends_E), low_N_R


def _multiply_back(
    by_output_N_O: torch.Tensor, layer: _Layer, ends_E: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the gradients by a layer's inputs, [N, I], and by what its adapters' A make of them."""
    by_x_N_I, adapter = grouped_mm(by_output_N_O, layer.weight_E_O_I, offs=ends_E), layer.adapter
    if adapter is None:
        return by_x_N_I, None
    by_low_N_R = _scaled(grouped_mm(by_output_N_O, adapter.up_E_O_R, offs=ends_E), adapter.scale)
    return add_product(by_x_N_I, by_low_N_R, adapter.down_E_R_I.transpose(1, 2), ends_E), by_low_N_R


def _by_adapter(
    x_N_I: torch.Tensor,
    low_N_R: torch.Tensor | None,
    by_output_N_O: torch.Tensor,
    by_low_N_R: torch.Tensor | None,
    ends_E: torch.Tensor,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the gradients by A and B of a layer's adapters; None for each if it has none."""
    if low_N_R is None or by_low_N_R is None:
        return None, None
    return grouped_mm(by_low_N_R.t(), x_N_I, offs=ends_E), grouped_mm(by_output_N_O.t(), low_N_R, offs=ends_E)


def _scaled(low_N_R: torch.Tensor, scale: float) -> torch.Tensor:
    return low_N_R if scale == 1.0 else low_N_R * scale
