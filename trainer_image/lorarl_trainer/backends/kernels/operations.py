"""What a decoder layer does besides matrix products, and the gradients of it: Triton kernels on a GPU, the same in PyTorch elsewhere.

Plain functions on tensors, none of which autograd sees: `fused_layer.py` puts them together.
Shape suffixes: T tokens, H hidden size, F feed-forward size, O columns of q, k and v, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import silu

if TYPE_CHECKING:
    from lorarl_trainer.backends.megatron.packed_attention import Rows

Angles = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines of each token's rotary angles, [T, D / 2], float32."""


@dataclass(frozen=True)
class Heads:
    """Where the heads of one kind lie among the columns of Megatron's linear_qkv: for each group its queries, its key, its value.

    Attributes:
        count: number of heads.
        in_group: how many of them a group has.
        first: the column of the first one within a group.
        group_width: columns of a group.
        size: columns of a head, D.
    """

    count: int
    in_group: int
    first: int
    group_width: int
    size: int

    def of(self, qkv_T_O: torch.Tensor) -> torch.Tensor:
        """Return these heads as a view, [T, groups, in_group, D]."""
        groups_T_N_W = qkv_T_O.view(qkv_T_O.shape[0], -1, self.group_width)
        part = groups_T_N_W[:, :, self.first : self.first + self.in_group * self.size]
        return part.unflatten(2, (self.in_group, self.size))


def rms_norm(x_T_H: torch.Tensor, weight_H: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x / rms(x) * weight, and 1 / rms(x), [T], float32."""
    if x_T_H.is_cuda:
        return _kernels().rms_norm(x_T_H, weight_H, eps)
    inverse_T = (x_T_H.float().square().mean(1) + eps).rsqrt()
    return (x_T_H.float() * inverse_T[:, None] * weight_H.float()).to(x_T_H.dtype), inverse_T


def rms_norm_backward(
    by_y_T_H: torch.Tensor,
    by_residual_T_H: torch.Tensor,
    x_T_H: torch.Tensor,
    weight_H: torch.Tensor,
    inverse_T: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradient by x, which also went around the norm as the residual, and y once more (in the place of its gradient)."""
    if x_T_H.is_cuda:
        return _kernels().rms_norm_backward(by_y_T_H, by_residual_T_H, x_T_H, weight_H, inverse_T)
    normed_T_H = x_T_H.float() * inverse_T[:, None]
    scaled_T_H = by_y_T_H.float() * weight_H.float()
    by_x_T_H = (
        inverse_T[:, None] * (scaled_T_H - normed_T_H * (scaled_T_H * normed_T_H).mean(1, keepdim=True))
        + by_residual_T_H.float()
    )
    return by_x_T_H.to(x_T_H.dtype), by_y_T_H.copy_(normed_T_H * weight_H.float())


def swiglu(gate_up_T_2F: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up, [T, F]."""
    if gate_up_T_2F.is_cuda:
        return _kernels().swiglu(gate_up_T_2F)
    gate_T_F, up_T_F = gate_up_T_2F.chunk(2, 1)
    return silu(gate_T_F) * up_T_F


def swiglu_backward(gate_up_T_2F: torch.Tensor, by_product_T_F: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradient by gate and up, and their product once more (in the place of its gradient)."""
    if gate_up_T_2F.is_cuda:
        return _kernels().swiglu_backward(gate_up_T_2F, by_product_T_F)
    gate_T_F, up_T_F = gate_up_T_2F.chunk(2, 1)
    sigmoid_T_F, silu_T_F = gate_T_F.sigmoid(), silu(gate_T_F)
    by_gate_T_F = by_product_T_F * up_T_F * sigmoid_T_F * (1 + gate_T_F - silu_T_F)
    by_gate_up_T_2F = torch.cat([by_gate_T_F, by_product_T_F * silu_T_F], 1)
    return by_gate_up_T_2F, by_product_T_F.copy_(silu_T_F * up_T_F)


def take_heads(
    qkv_T_O: torch.Tensor,
    heads: Heads,
    rows: Rows | None,
    angles: Angles | None,
    norm: tuple[torch.Tensor, float] | None,
) -> torch.Tensor:
    """Return heads of one kind, [rows, heads, D]: normalised (weight and epsilon), turned by their angles, of these rows or all."""
    if qkv_T_O.is_cuda:
        index = None if rows is None or rows.identity else rows.index
        sizes = (heads.count, heads.in_group, heads.first, heads.group_width, heads.size)
        return _kernels().take_heads(qkv_T_O, index, *sizes, angles, norm)
    taken = heads.of(qkv_T_O).flatten(1, 2)
    if norm is not None:
        inverse = (taken.float().square().mean(2, keepdim=True) + norm[1]).rsqrt()
        taken = (taken.float() * inverse * norm[0].float()).to(taken.dtype)
    if angles is not None:
        taken = _turned(taken, *angles)
    return taken.contiguous() if rows is None or rows.identity else taken.index_select(0, rows.index)


def put_heads(
    by_taken: torch.Tensor,
    by_qkv_T_O: torch.Tensor,
    qkv_T_O: torch.Tensor,
    heads: Heads,
    rows: Rows | None,
    angles: Angles | None,
    norm: tuple[torch.Tensor, float] | None,
) -> None:
    """Write the gradient by the columns of qkv that `take_heads` read, all of them, given that by its result."""
    if by_taken.is_cuda:
        places = None if rows is None or rows.identity else (rows.order, rows.ends)
        by_taken = by_taken if by_taken.stride(2) == 1 else by_taken.contiguous()
        sizes = (heads.in_group, heads.first, heads.group_width)
        _kernels().put_heads(by_taken, by_qkv_T_O, places, qkv_T_O, *sizes, angles, norm)
        return
    by_heads = by_taken.float() if rows is None or rows.identity else rows.summed(by_taken.float())
    if angles is not None:
        by_heads = _turned(by_heads, angles[0], -angles[1])
    if norm is not None:
        value = heads.of(qkv_T_O).flatten(1, 2).float()
        inverse = (value.square().mean(2, keepdim=True) + norm[1]).rsqrt()
        normed, scaled = value * inverse, by_heads * norm[0].float()
        by_heads = inverse * (scaled - normed * (scaled * normed).mean(2, keepdim=True))
    target = heads.of(by_qkv_T_O)
    target.copy_(by_heads.view(target.shape))


def _turned(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Turn each pair (i, i + D / 2) of a head by its angle (J. Su et al., "RoFormer", 2021, in the order of GPT-NeoX)."""
    low, high = heads.float().chunk(2, 2)
    cosine, sine = cosines[:, None], sines[:, None]
    return torch.cat([low * cosine - high * sine, high * cosine + low * sine], 2).to(heads.dtype)


def _kernels() -> Any:
    from lorarl_trainer.backends.kernels import triton_layer  # needs Triton, which a CPU has no use for

    return triton_layer
