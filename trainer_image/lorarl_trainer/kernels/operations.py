"""What a decoder layer does besides matrix products, and its gradients: in PyTorch, or by Triton kernels on a GPU.

Functions on tensors that autograd does not see: `backends/megatron/fused_layer.py` puts them together.
Shape suffixes: T tokens, H hidden size, F feed-forward size, O columns of q, k and v, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import silu

from lorarl_trainer.kernels.dispatch import with_kernel
from lorarl_trainer.kernels.gather import Gather
from lorarl_trainer.kernels.heads import Angles, Heads


def _triton() -> Any:
    from lorarl_trainer.kernels import triton_layer  # needs Triton, which a CPU has no use for

    return triton_layer


@with_kernel(lambda: _triton().rms_norm)
def rms_norm(x_T_H: torch.Tensor, weight_H: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x / rms(x) * weight, and 1 / rms(x), [T], float32."""
    inverse_T = (x_T_H.float().square().mean(1) + eps).rsqrt()
    return (x_T_H.float() * inverse_T[:, None] * weight_H.float()).to(x_T_H.dtype), inverse_T


@with_kernel(lambda: _triton().rms_norm_backward)
def rms_norm_backward(
    by_y_T_H: torch.Tensor,
    by_residual_T_H: torch.Tensor,
    x_T_H: torch.Tensor,
    weight_H: torch.Tensor,
    inverse_T: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradient by x, which also bypassed the norm as the residual, and y again in place of its gradient."""
    normed_T_H = x_T_H.float() * inverse_T[:, None]
    scaled_T_H = by_y_T_H.float() * weight_H.float()
    by_x_T_H = (
        inverse_T[:, None] * (scaled_T_H - normed_T_H * (scaled_T_H * normed_T_H).mean(1, keepdim=True))
        + by_residual_T_H.float()
    )
    return by_x_T_H.to(x_T_H.dtype), by_y_T_H.copy_(normed_T_H * weight_H.float())


@with_kernel(lambda: _triton().swiglu)
def swiglu(gate_up_T_2F: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up, [T, F]."""
    gate_T_F, up_T_F = gate_up_T_2F.chunk(2, 1)
    return silu(gate_T_F) * up_T_F


@with_kernel(lambda: _triton().swiglu_backward)
def swiglu_backward(gate_up_T_2F: torch.Tensor, by_product_T_F: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradient by gate and up, and their product again (in place of its gradient)."""
    gate_T_F, up_T_F = gate_up_T_2F.chunk(2, 1)
    sigmoid_T_F, silu_T_F = gate_T_F.sigmoid(), silu(gate_T_F)
    by_gate_T_F = by_product_T_F * up_T_F * sigmoid_T_F * (1 + gate_T_F - silu_T_F)
    by_gate_up_T_2F = torch.cat([by_gate_T_F, by_product_T_F * silu_T_F], 1)
    return by_gate_up_T_2F, by_product_T_F.copy_(silu_T_F * up_T_F)


@with_kernel(lambda: _triton().take_heads)
def take_heads(
    qkv_T_O: torch.Tensor,
    heads: Heads,
    rows: Gather | None,
    angles: Angles | None,
    norm: tuple[torch.Tensor, float] | None,
) -> torch.Tensor:
    """Return heads of one kind, [rows, heads, D], of these rows or all, normalised (weight, epsilon) and rotated."""
    taken = heads.of(qkv_T_O).flatten(1, 2)
    if norm is not None:
        inverse = (taken.float().square().mean(2, keepdim=True) + norm[1]).rsqrt()
        taken = (taken.float() * inverse * norm[0].float()).to(taken.dtype)
    if angles is not None:
        taken = _rotated(taken, *angles)
    return (taken if rows is None else rows.take(taken)).contiguous()


@with_kernel(lambda: _triton().put_heads)
def put_heads(
    by_taken: torch.Tensor,
    by_qkv_T_O: torch.Tensor,
    qkv_T_O: torch.Tensor,
    heads: Heads,
    rows: Gather | None,
    angles: Angles | None,
    norm: tuple[torch.Tensor, float] | None,
) -> None:
    """Write the gradient by all columns of qkv that `take_heads` read, given the gradient by its result."""
    by_heads = by_taken.float() if rows is None else rows.summed(by_taken.float())
    if angles is not None:
        by_heads = _rotated(by_heads, angles[0], -angles[1])
    if norm is not None:
        value = heads.of(qkv_T_O).flatten(1, 2).float()
        inverse = (value.square().mean(2, keepdim=True) + norm[1]).rsqrt()
        normed, scaled = value * inverse, by_heads * norm[0].float()
        by_heads = inverse * (scaled - normed * (scaled * normed).mean(2, keepdim=True))
    target = heads.of(by_qkv_T_O)
    target.copy_(by_heads.view(target.shape))


def _rotated(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Rotate each pair (i, i + D / 2) of a head by its angle (J. Su et al., "RoFormer", 2021, GPT-NeoX's order)."""
    low, high = heads.float().chunk(2, 2)
    cosine, sine = cosines[:, None], sines[:, None]
    return torch.cat([low * cosine - high * sine, high * cosine + low * sine], 2).to(heads.dtype)
