"""The steps of a fused layer, each with its own backward pass: see `fused_layer`.

They keep the parameters of adapters, which are there anyway, and join them again in the backward pass. At rank 256, the
joined copies of all layers would take 5 GB of a GPU at 32B.

Shape suffixes: T tokens, S of them on this rank (all, or its share of them between layers that are split), O columns of
linear_qkv, I inputs of linear_proj, H hidden size, F feed-forward size, R rank of the adapter (of all parts), A
attention heads, K keys, G key-value heads, D head size. Over several ranks O, I, F, A and G are this rank's share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lorarl_trainer.backends.megatron.context import SharedKeys
from lorarl_trainer.backends.megatron.fused_linear import FusedLinear
from lorarl_trainer.kernels.attention import attend, attend_backward
from lorarl_trainer.kernels.gather import Gather
from lorarl_trainer.kernels.heads import Angles, Heads
from lorarl_trainer.kernels.operations import (
    put_heads,
    rms_norm,
    rms_norm_backward,
    swiglu,
    swiglu_backward,
    take_heads,
)
from lorarl_trainer.kernels.segments import Extents

Norm = tuple[torch.Tensor, float]
"""Its weight and epsilon."""
Taken = tuple[Heads, Gather | None, Angles | None, Norm | None]
"""Heads of one kind as `take_heads` takes them: where they are, which rows, their angles and their norm."""


def project_normed(
    hidden_S_H: torch.Tensor, projection: FusedLinear, parameters: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output of norm and linear_qkv, [T, O], and the residual, [S, H].

    The residual's gradient comes back here and is added in the norm's kernel.
    """
    output_T_O, residual_S_H = _NormedProjection.apply(hidden_S_H, projection, *parameters)
    return output_T_O, residual_S_H


def norm_whole(qkv_T_O: torch.Tensor, norms: Sequence[tuple[Heads, Norm]]) -> torch.Tensor:
    """Return the columns of linear_qkv in which the heads of each kind are normalised together (weight, epsilon)."""
    normed_T_O: torch.Tensor = _WholeNorms.apply(qkv_T_O, norms)
    return normed_T_O


def attend_packed(qkv_T_O: torch.Tensor, heads: Sequence[Taken], extents: Extents, scale: float) -> torch.Tensor:
    """Return attention's output, [T, I], from the columns of linear_qkv.

    Queries, keys and values are normalised, rotated and gathered again in the backward pass. Keys of a prompt are there
    once for each of its completions, and only one layer's are at a time.
    """
    output_T_I: torch.Tensor = _Attention.apply(qkv_T_O, heads, extents, scale)
    return output_T_I


def add_projection(
    residual_S_H: torch.Tensor, x_T_I: torch.Tensor, projection: FusedLinear, parameters: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Return the residual with linear_proj of x added, [S, H]."""
    hidden_S_H: torch.Tensor = _AddedProjection.apply(x_T_I, residual_S_H, projection, *parameters)
    return hidden_S_H


def add_mlp(
    hidden_S_H: torch.Tensor,
    fc1: FusedLinear,
    fc2: FusedLinear,
    parameters: Sequence[torch.Tensor],
    *,
    recompute: bool,
) -> torch.Tensor:
    """Return the hidden states with norm, linear_fc1, SwiGLU and linear_fc2 of them added, [S, H].

    `parameters` are those of linear_fc1, then those of linear_fc2. `recompute` keeps neither gate nor up.
    """
    added_S_H: torch.Tensor = _AddedMlp.apply(hidden_S_H, fc1, fc2, recompute, *parameters)
    return added_S_H


class _NormedProjection(torch.autograd.Function):
    """See `project_normed`."""

    @staticmethod
    def forward(
        ctx: Any, hidden_S_H: torch.Tensor, projection: FusedLinear, *parameters: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        normed_S_H, inverse_S = rms_norm(hidden_S_H, projection.norm, projection.eps)
        output_T_O, low_T_R = projection.apply(normed_S_H, projection.join(parameters))
        ctx.projection = projection
        ctx.save_for_backward(hidden_S_H, inverse_S, low_T_R, *parameters)
        return output_T_O, hidden_S_H.view_as(hidden_S_H)

    @staticmethod
    def backward(ctx: Any, by_output_T_O: torch.Tensor, by_residual_S_H: torch.Tensor) -> Any:
        projection, (hidden_S_H, inverse_S, low_T_R, *parameters) = ctx.projection, ctx.saved_tensors
        by_normed_S_H, by_low_S_R = projection.apply_backward(by_output_T_O, projection.join(parameters))
        by_hidden_S_H, normed_S_H = rms_norm_backward(
            by_normed_S_H, by_residual_S_H, hidden_S_H, projection.norm, inverse_S
        )
        return by_hidden_S_H, None, *projection.gradients(normed_S_H, low_T_R, by_output_T_O, by_low_S_R)


class _WholeNorms(torch.autograd.Function):
    """See `norm_whole`."""

    @staticmethod
    def forward(ctx: Any, qkv_T_O: torch.Tensor, norms: Sequence[tuple[Heads, Norm]]) -> torch.Tensor:
        normed_T_O, inverses = qkv_T_O.clone(), []
        for heads, (weight, eps) in norms:
            normed_T_I, inverse_T = rms_norm(heads.of(qkv_T_O).flatten(1), weight, eps)
            target = heads.of(normed_T_O)
            target.copy_(normed_T_I.view(target.shape))
            inverses.append(inverse_T)
        ctx.norms = norms
        ctx.save_for_backward(qkv_T_O, *inverses)
        return normed_T_O

    @staticmethod
    def backward(ctx: Any, by_normed_T_O: torch.Tensor) -> Any:
        qkv_T_O, *inverses = ctx.saved_tensors
        by_qkv_T_O = by_normed_T_O.clone()
        for (heads, (weight, _)), inverse_T in zip(ctx.norms, inverses, strict=True):
            # `flatten` copies, and the kernel writes into the copy of the gradient.
            by_y_T_I, x_T_I = heads.of(by_normed_T_O).flatten(1), heads.of(qkv_T_O).flatten(1)
            by_x_T_I, _ = rms_norm_backward(by_y_T_I, torch.zeros_like(x_T_I), x_T_I, weight, inverse_T)
            target = heads.of(by_qkv_T_O)
            target.copy_(by_x_T_I.view(target.shape))
        return by_qkv_T_O, None


class _Attention(torch.autograd.Function):
    """See `attend_packed`."""

    @staticmethod
    def forward(
        ctx: Any, qkv_T_O: torch.Tensor, heads: Sequence[Taken], extents: Extents, scale: float
    ) -> torch.Tensor:
        query_T_A_D, key_K_G_D, value_K_G_D = (_take(qkv_T_O, how) for how in heads)
        output_T_A_D, statistics = attend(query_T_A_D, key_K_G_D, value_K_G_D, extents, scale)
        ctx.heads, ctx.extents, ctx.scale = heads, extents, scale
        ctx.save_for_backward(qkv_T_O, output_T_A_D, *statistics)
        return output_T_A_D.flatten(1)

    @staticmethod
    def backward(ctx: Any, by_output_T_I: torch.Tensor) -> Any:
        qkv_T_O, output_T_A_D, *statistics = ctx.saved_tensors
        query_T_A_D, key_K_G_D, value_K_G_D = (_take(qkv_T_O, how) for how in ctx.heads)
        by_heads = attend_backward(
            by_output_T_I.reshape(output_T_A_D.shape),
            query_T_A_D,
            key_K_G_D,
            value_K_G_D,
            output_T_A_D,
            tuple(statistics),
            ctx.extents,
            ctx.scale,
        )
        by_qkv_T_O = torch.empty_like(qkv_T_O)
        for by_taken, how in zip(by_heads, ctx.heads, strict=True):
            _put(by_taken, by_qkv_T_O, qkv_T_O, how)
        return by_qkv_T_O, None, None, None


def _take(qkv_T_O: torch.Tensor, taken: Taken) -> torch.Tensor:
    """See `take_heads`. Keys that ranks share are rotated before they are sent (collective)."""
    heads, rows, angles, norm = taken
    if isinstance(rows, SharedKeys):
        return rows.take(take_heads(qkv_T_O, heads, None, angles, norm))
    return take_heads(qkv_T_O, heads, rows, angles, norm)


def _put(by_taken: torch.Tensor, by_qkv_T_O: torch.Tensor, qkv_T_O: torch.Tensor, taken: Taken) -> None:
    """See `put_heads`. The gradients by keys that ranks share are summed over them (collective)."""
    heads, rows, angles, norm = taken
    if isinstance(rows, SharedKeys):
        by_taken, rows = rows.summed(by_taken), None
    put_heads(by_taken, by_qkv_T_O, qkv_T_O, heads, rows, angles, norm)


class _AddedProjection(torch.autograd.Function):
    """See `add_projection`."""

    @staticmethod
    def forward(
        ctx: Any, x_T_I: torch.Tensor, residual_S_H: torch.Tensor, projection: FusedLinear, *parameters: torch.Tensor
    ) -> torch.Tensor:
        output_S_H, low_T_R = projection.apply(x_T_I, projection.join(parameters))
        ctx.projection = projection
        ctx.save_for_backward(x_T_I, low_T_R, *parameters)
        return output_S_H.add_(residual_S_H)

    @staticmethod
    def backward(ctx: Any, by_output_S_H: torch.Tensor) -> Any:
        projection, (x_T_I, low_T_R, *parameters) = ctx.projection, ctx.saved_tensors
        by_output_T_H = projection.of_all_tokens(by_output_S_H)
        by_x_T_I, by_low_T_R = projection.apply_backward(by_output_T_H, projection.join(parameters))
        return by_x_T_I, by_output_S_H, None, *projection.gradients(x_T_I, low_T_R, by_output_T_H, by_low_T_R)


class _AddedMlp(torch.autograd.Function):
    """See `add_mlp`."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_S_H: torch.Tensor,
        fc1: FusedLinear,
        fc2: FusedLinear,
        recompute: bool,
        *parameters: torch.Tensor,
    ) -> torch.Tensor:
        count = len(fc1.parameters())
        adapter1, adapter2 = fc1.join(parameters[:count]), fc2.join(parameters[count:])
        normed_S_H, inverse_S = rms_norm(hidden_S_H, fc1.norm, fc1.eps)
        gate_up_T_2F, low1_T_R = fc1.apply(normed_S_H, adapter1)
        output_S_H, low2_T_R = fc2.apply(swiglu(gate_up_T_2F), adapter2)
        ctx.projections, ctx.count = (fc1, fc2), count
        ctx.save_for_backward(
            hidden_S_H, inverse_S, None if recompute else gate_up_T_2F, low1_T_R, low2_T_R, *parameters
        )
        return output_S_H.add_(hidden_S_H)

    @staticmethod
    def backward(ctx: Any, by_output_S_H: torch.Tensor) -> Any:
        hidden_S_H, inverse_S, gate_up_T_2F, low1_T_R, low2_T_R, *parameters = ctx.saved_tensors
        (fc1, fc2), count = ctx.projections, ctx.count
        adapter1, adapter2 = fc1.join(parameters[:count]), fc2.join(parameters[count:])
        if gate_up_T_2F is None:
            gate_up_T_2F, _ = fc1.apply(rms_norm(hidden_S_H, fc1.norm, fc1.eps)[0], adapter1)
        by_output_T_H = fc2.of_all_tokens(by_output_S_H)
        by_product_T_F, by_low2_T_R = fc2.apply_backward(by_output_T_H, adapter2)
        by_gate_up_T_2F, product_T_F = swiglu_backward(gate_up_T_2F, by_product_T_F)
        gradients2 = fc2.gradients(product_T_F, low2_T_R, by_output_T_H, by_low2_T_R)
        del gate_up_T_2F, by_output_T_H, by_product_T_F, product_T_F
        by_normed_S_H, by_low1_S_R = fc1.apply_backward(by_gate_up_T_2F, adapter1)
        by_hidden_S_H, normed_S_H = rms_norm_backward(by_normed_S_H, by_output_S_H, hidden_S_H, fc1.norm, inverse_S)
        gradients1 = fc1.gradients(normed_S_H, low1_T_R, by_gate_up_T_2F, by_low1_S_R)
        return by_hidden_S_H, None, None, None, *gradients1, *gradients2
