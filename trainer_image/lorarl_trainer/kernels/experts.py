"""What a mixture's experts need beside their large products: in PyTorch, or by Triton kernels on a GPU.

Functions on tensors that autograd does not see: `lora/grouped_experts.py` puts them together.
Shape suffixes: T tokens, K experts of a token, N = T K pairs of both, E experts, F an expert's inner size, O outputs of
a layer, R rank of its adapter.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import grouped_mm

from lorarl_trainer.kernels.dispatch import with_kernel
from lorarl_trainer.kernels.operations import swiglu, swiglu_backward
from lorarl_trainer.kernels.row_sums import NOWHERE


def _triton() -> Any:
    from lorarl_trainer.kernels import triton_experts  # needs Triton, which a CPU has no use for

    return triton_experts


@with_kernel(lambda: _triton().sort_by_expert)
def sort_by_expert(
    chosen_T_K: torch.Tensor, first: int, experts: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sort the pairs of a token and an expert by expert, and those of an expert by token.

    Only the pairs of so many `experts` from the `first` on count. Nothing here waits for a GPU, so CUDA graphs can
    hold it.

    Returns:
        Each pair's index into [T, K], flat, in the new order, [N]; behind the last pair it means nothing.
        Where each pair is in that order, [T, K], `NOWHERE` for those that do not count.
        Where the pairs of each expert end, [E].
    """
    number_N = chosen_T_K.flatten().long() - first
    counts_N = (number_N >= 0) & (number_N < experts)
    expert_N, order_N = number_N.where(counts_N, experts).sort(stable=True)
    ranks_N = torch.arange(len(order_N), device=order_N.device)
    place_N = torch.empty_like(order_N).scatter_(0, order_N, ranks_N).where(counts_N, NOWHERE)
    ends_E = torch.searchsorted(expert_N, torch.arange(experts, device=order_N.device), right=True, out_int32=True)
    return order_N, place_N.view_as(chosen_T_K), ends_E


@with_kernel(lambda: _triton().add_product)
def add_product(
    output_N_O: torch.Tensor, low_N_R: torch.Tensor, up_E_O_R: torch.Tensor, ends_E: torch.Tensor
) -> torch.Tensor:
    """Add the product of each row with its expert's matrix to `output_N_O`, in place, and return that."""
    return output_N_O.add_(grouped_mm(low_N_R, up_E_O_R.transpose(1, 2), offs=ends_E))


@with_kernel(lambda: _triton().weighted_swiglu_backward)
def weighted_swiglu_backward(
    gate_up_N_2F: torch.Tensor, by_result_N_F: torch.Tensor, order_N: torch.Tensor, weights_T_K: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return gradients of r = w silu(gate) up, given that by r but for w: by gate and up, by w, [T, K], and r itself.

    r replaces the gradient that is given. `order_N` has each row's index into the weights, flat. A weight without a row
    has a gradient of zero.
    """
    product_N_F, weight_N_1 = swiglu(gate_up_N_2F), weights_T_K.flatten()[order_N, None]
    by_weights = torch.zeros_like(weights_T_K)
    by_weights.view(-1)[order_N] = (by_result_N_F * product_N_F).sum(1)
    by_gate_up_N_2F, _ = swiglu_backward(gate_up_N_2F, by_result_N_F * weight_N_1)
    return by_gate_up_N_2F, by_weights, by_result_N_F.copy_(weight_N_1 * product_N_F)
