"""A whole decoder layer with its adapters in a few steps: what Megatron and Megatron-Bridge do in a hundred small ones.

Megatron-Bridge adds an adapter's output to its layer's in separate passes over the widest activations there are
(multiply by the scale, join the parts, add). Megatron's layer consists of many small operations, and both keep what a
frozen weight has no use for. Here a product with B adds into the frozen layer's output, forward and backward. The parts
of a fused layer (q, k, v; gate, up) are one adapter with a block-diagonal B. What is cheap (norms, SwiGLU, rotation) is
computed again in the backward pass: for each token a layer keeps two hidden states, q, k, v, the attention's output,
gate and up. Keys of a shared prompt, which attention wants once per completion, are gathered again.

This is for layers of Llama's kind (RMSNorm, rotary positions, SwiGLU) whole on one rank, with adapters without dropout.
Megatron's own code runs all others. `planning.execution` decides which way a job's layers go.

Shape suffixes: T tokens, I inputs, O outputs, R rank of the adapter (of all parts), H hidden size, F feed-forward size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import linear

from lorarl_trainer.backends.kernels.attention import attend, attend_backward
from lorarl_trainer.backends.kernels.gather import Gather
from lorarl_trainer.backends.kernels.heads import Angles, Heads
from lorarl_trainer.backends.kernels.operations import (
    put_heads,
    rms_norm,
    rms_norm_backward,
    swiglu,
    swiglu_backward,
    take_heads,
)
from lorarl_trainer.backends.kernels.segments import Extents
from lorarl_trainer.backends.megatron.packed_attention import Current
from lorarl_trainer.backends.megatron.plain_config import not_plain

_Taken = tuple[Heads, Gather | None, Angles | None, tuple[torch.Tensor, float] | None]
"""Heads of one kind as `take_heads` takes them: where they are, which rows, their angles and their norm."""
LowRank = tuple[torch.Tensor, torch.Tensor]
"""A of all parts, [R, I], and block-diagonal B, [O, R]."""
_LINEAR = {
    "TELayerNormColumnParallelLinear",
    "TEColumnParallelLinear",
    "TERowParallelLinear",
    "ColumnParallelLinear",
    "RowParallelLinear",
}
_WRAPPERS = {"LoRALinear", "LoRALinearSplitQKV", "LoRALinearSplitFC1UpGate"}


def fuse_layers(model: torch.nn.Module, current: Current) -> int:
    """Let those decoder layers of a Megatron GPT model that can compute in a few steps do so; return how many can."""
    layers: Any = model.decoder.layers
    chosen = [layer for layer in layers if _is_plain(layer)]
    for layer in chosen:
        layer.forward = _FusedLayer(layer, current).forward
    return len(chosen)


class _FusedLayer:
    """The steps of one layer, on the parameters of Megatron's."""

    def __init__(self, layer: Any, current: Current) -> None:
        attention, config = layer.self_attention, layer.config
        self._layer, self._current, self._scale = layer, current, attention.core_attention.scale
        groups, size = config.num_query_groups, config.kv_channels
        queries = config.num_attention_heads // groups
        width = (queries + 2) * size
        self._query = Heads(config.num_attention_heads, queries, 0, width, size)
        self._key = Heads(groups, 1, queries * size, width, size)
        self._value = Heads(groups, 1, (queries + 1) * size, width, size)
        self._qkv = _Projection(
            attention.linear_qkv, [queries * size, size, size], "qkv", layer.input_layernorm, config.layernorm_epsilon
        )
        self._proj = _Projection(attention.linear_proj)
        gate_up = [config.ffn_hidden_size] * 2
        self._fc1 = _Projection(
            layer.mlp.linear_fc1, gate_up, ("gate", "up"), layer.pre_mlp_layernorm, config.layernorm_epsilon
        )
        self._fc2 = _Projection(layer.mlp.linear_fc2)
        self._head_norms = [
            None if norm is None else (norm.weight, config.layernorm_epsilon) for norm in _head_norms(attention)
        ]

    def forward(self, hidden_states: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
        """Return the layer's output, [T, 1, H], as Megatron's layer does."""
        hidden_T_H = hidden_states.flatten(0, 1)
        qkv_T_O, residual_T_H = _NormedProjection.apply(hidden_T_H, self._qkv, *self._qkv.parameters())
        attended_T_I = _Attention.apply(qkv_T_O, self._heads(), self._current.get().extents, self._scale)
        hidden_T_H = _ProjectionOntoResidual.apply(attended_T_I, residual_T_H, self._proj, *self._proj.parameters())
        recompute = self._layer.recompute_mlp and self._layer.training
        hidden_T_H = _MlpOntoResidual.apply(
            hidden_T_H, self._fc1, self._fc2, recompute, *self._fc1.parameters(), *self._fc2.parameters()
        )
        return hidden_T_H.view(hidden_states.shape), None

    def _heads(self) -> list[_Taken]:
        """Return what is taken for queries, keys and values."""
        keys, angles = self._current.get().keys, self._current.angles
        return [
            (self._query, None, angles, self._head_norms[0]),
            (self._key, keys, angles, self._head_norms[1]),
            (self._value, keys, None, None),
        ]


class _Projection:
    """A frozen linear layer, what adapts it, and the norm before it."""

    def __init__(
        self, module: Any, widths: Sequence[int] = (), parts: Sequence[str] = (), norm: Any = None, eps: float = 0.0
    ) -> None:
        """`widths` are the outputs of the layer's parts in each of its groups."""
        self._wrapper = module if type(module).__name__ in _WRAPPERS else None
        layer = module if self._wrapper is None else module.to_wrap
        self.weight, self._bias, self.eps = layer.weight, layer.bias, eps
        self.norm = getattr(layer, "layer_norm_weight", getattr(norm, "weight", None))
        adapters: list[Any] = []
        if self._wrapper is not None:
            split = isinstance(module.adapter, torch.nn.ModuleDict)
            adapters = [module.adapter[f"adapter_{part}"] for part in parts] if split else [module.adapter]
        self._group_width = sum(widths)
        self._adapters, self._columns, first, rank = [], [], 0, 0
        for index, adapter in enumerate(adapters):
            width = widths[index] if len(adapters) > 1 else 0
            if hasattr(adapter, "linear_in"):  # a part may be left out
                self._adapters.append(adapter)
                self._columns.append((slice(first, first + width), slice(rank, rank + adapter.dim)))
                self.scale = adapter.alpha / adapter.dim
                rank += adapter.dim
            first += width
        self._rank, self._joined = rank, len(adapters) > 1

    def parameters(self) -> list[torch.nn.Parameter]:
        """Return A of each part, then B of each; nothing where the adapters are switched off."""
        if self._wrapper is None or not self._wrapper._adapter_enabled:
            return []
        return [a.linear_in.weight for a in self._adapters] + [a.linear_out.weight for a in self._adapters]

    def join(self, parameters: Sequence[torch.Tensor]) -> LowRank | tuple[()]:
        """Join the adapters of the parts into one."""
        if not parameters:
            return ()
        downs, ups = parameters[: len(parameters) // 2], parameters[len(parameters) // 2 :]
        if not self._joined:
            return downs[0], ups[0]
        up_O_R = ups[0].new_zeros(self.weight.shape[0], self._rank)
        for view, up in zip(self._blocks(up_O_R), ups, strict=True):
            view.copy_(up.view(view.shape))
        return torch.cat(list(downs)), up_O_R

    def split(self, by_down_R_I: torch.Tensor, by_up_O_R: torch.Tensor) -> list[torch.Tensor]:
        """Return the gradients of the parts' adapters, in the order of `parameters`, given the joined adapter's."""
        if not self._joined:
            return [by_down_R_I, by_up_O_R]
        ups = [view.reshape(-1, view.shape[-1]) for view in self._blocks(by_up_O_R)]
        return [*by_down_R_I.split([up.shape[1] for up in ups]), *ups]

    def _blocks(self, up_O_R: torch.Tensor) -> list[torch.Tensor]:
        groups = up_O_R.view(-1, self._group_width, self._rank)
        return [groups[:, rows, columns] for rows, columns in self._columns]

    def apply(self, x_T_I: torch.Tensor, adapter: LowRank | tuple[()]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return W x + b + scale B A x, and scale A x.

        The adapter's product comes first, as in the engine's layers, so that both round alike.
        """
        bias_O = self._bias if self._bias is not None and self._bias.numel() else None  # Transformer Engine's is empty
        if not adapter:
            return linear(x_T_I, self.weight, bias_O), None
        low_T_R = (x_T_I @ adapter[0].t()).mul_(self.scale)
        return linear(low_T_R, adapter[1], bias_O).addmm_(x_T_I, self.weight.t()), low_T_R

    def apply_backward(
        self, by_output_T_O: torch.Tensor, adapter: LowRank | tuple[()]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the gradients by x and by A x."""
        by_x_T_I = by_output_T_O @ self.weight
        if not adapter:
            return by_x_T_I, None
        by_low_T_R = (by_output_T_O @ adapter[1]).mul_(self.scale)
        return by_x_T_I.addmm_(by_low_T_R, adapter[0]), by_low_T_R

    def gradients(
        self,
        x_T_I: torch.Tensor,
        low_T_R: torch.Tensor | None,
        by_output_T_O: torch.Tensor,
        by_low_T_R: torch.Tensor | None,
    ) -> list[torch.Tensor]:
        """Return the gradients of `parameters`."""
        if low_T_R is None or by_low_T_R is None:
            return []
        return self.split(by_low_T_R.t() @ x_T_I, by_output_T_O.t() @ low_T_R)


class _NormedProjection(torch.autograd.Function):
    """Norm and linear_qkv.

    It returns the residual too, so that the residual's gradient comes back here and is added in the norm's kernel.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_T_H: torch.Tensor, projection: _Projection, *parameters: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        adapter = projection.join(parameters)
        normed_T_H, inverse_T = rms_norm(hidden_T_H, projection.norm, projection.eps)
        output_T_O, low_T_R = projection.apply(normed_T_H, adapter)
        ctx.projection = projection
        ctx.save_for_backward(hidden_T_H, inverse_T, low_T_R, *adapter)
        return output_T_O, hidden_T_H.view_as(hidden_T_H)

    @staticmethod
    def backward(ctx: Any, by_output_T_O: torch.Tensor, by_residual_T_H: torch.Tensor) -> Any:
        projection, (hidden_T_H, inverse_T, low_T_R, *adapter) = ctx.projection, ctx.saved_tensors
        by_normed_T_H, by_low_T_R = projection.apply_backward(by_output_T_O, adapter)
        by_hidden_T_H, normed_T_H = rms_norm_backward(
            by_normed_T_H, by_residual_T_H, hidden_T_H, projection.norm, inverse_T
        )
        return by_hidden_T_H, None, *projection.gradients(normed_T_H, low_T_R, by_output_T_O, by_low_T_R)


class _Attention(torch.autograd.Function):
    """From the columns of linear_qkv to attention's output.

    Queries, keys and values are normalised, rotated and gathered again in the backward pass. Keys of a prompt are there
    once for each of its completions, and only one layer's are at a time.
    """

    @staticmethod
    def forward(ctx: Any, qkv_T_O: torch.Tensor, heads: list[_Taken], extents: Extents, scale: float) -> torch.Tensor:
        query_T_A_D, key_K_G_D, value_K_G_D = (take_heads(qkv_T_O, *how) for how in heads)
        output_T_A_D, statistics = attend(query_T_A_D, key_K_G_D, value_K_G_D, extents, scale)
        ctx.heads, ctx.extents, ctx.scale = heads, extents, scale
        ctx.save_for_backward(qkv_T_O, output_T_A_D, *statistics)
        return output_T_A_D.flatten(1)

    @staticmethod
    def backward(ctx: Any, by_output_T_I: torch.Tensor) -> Any:
        qkv_T_O, output_T_A_D, *statistics = ctx.saved_tensors
        query_T_A_D, key_K_G_D, value_K_G_D = (take_heads(qkv_T_O, *how) for how in ctx.heads)
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
            put_heads(by_taken, by_qkv_T_O, qkv_T_O, *how)
        return by_qkv_T_O, None, None, None


class _ProjectionOntoResidual(torch.autograd.Function):
    """linear_proj, added to the residual."""

    @staticmethod
    def forward(
        ctx: Any, x_T_I: torch.Tensor, residual_T_H: torch.Tensor, projection: _Projection, *parameters: torch.Tensor
    ) -> torch.Tensor:
        adapter = projection.join(parameters)
        output_T_H, low_T_R = projection.apply(x_T_I, adapter)
        ctx.projection = projection
        ctx.save_for_backward(x_T_I, low_T_R, *adapter)
        return output_T_H.add_(residual_T_H)

    @staticmethod
    def backward(ctx: Any, by_output_T_H: torch.Tensor) -> Any:
        projection, (x_T_I, low_T_R, *adapter) = ctx.projection, ctx.saved_tensors
        by_x_T_I, by_low_T_R = projection.apply_backward(by_output_T_H, adapter)
        return by_x_T_I, by_output_T_H, None, *projection.gradients(x_T_I, low_T_R, by_output_T_H, by_low_T_R)


class _MlpOntoResidual(torch.autograd.Function):
    """Norm, linear_fc1, SwiGLU and linear_fc2, added to the residual."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_T_H: torch.Tensor,
        fc1: _Projection,
        fc2: _Projection,
        recompute: bool,
        *parameters: torch.Tensor,
    ) -> torch.Tensor:
        count = len(fc1.parameters())
        adapter1, adapter2 = fc1.join(parameters[:count]), fc2.join(parameters[count:])
        normed_T_H, inverse_T = rms_norm(hidden_T_H, fc1.norm, fc1.eps)
        gate_up_T_2F, low1_T_R = fc1.apply(normed_T_H, adapter1)
        output_T_H, low2_T_R = fc2.apply(swiglu(gate_up_T_2F), adapter2)
        ctx.projections, ctx.adapted = (fc1, fc2), len(adapter1)
        ctx.save_for_backward(
            hidden_T_H, inverse_T, None if recompute else gate_up_T_2F, low1_T_R, low2_T_R, *adapter1, *adapter2
        )
        return output_T_H.add_(hidden_T_H)

    @staticmethod
    def backward(ctx: Any, by_output_T_H: torch.Tensor) -> Any:
        hidden_T_H, inverse_T, gate_up_T_2F, low1_T_R, low2_T_R, *adapters = ctx.saved_tensors
        (fc1, fc2), adapter1, adapter2 = ctx.projections, adapters[: ctx.adapted], adapters[ctx.adapted :]
        if gate_up_T_2F is None:
            gate_up_T_2F, _ = fc1.apply(rms_norm(hidden_T_H, fc1.norm, fc1.eps)[0], adapter1)
        by_product_T_F, by_low2_T_R = fc2.apply_backward(by_output_T_H, adapter2)
        by_gate_up_T_2F, product_T_F = swiglu_backward(gate_up_T_2F, by_product_T_F)
        gradients2 = fc2.gradients(product_T_F, low2_T_R, by_output_T_H, by_low2_T_R)
        del gate_up_T_2F, by_product_T_F, product_T_F
        by_normed_T_H, by_low1_T_R = fc1.apply_backward(by_gate_up_T_2F, adapter1)
        by_hidden_T_H, normed_T_H = rms_norm_backward(by_normed_T_H, by_output_T_H, hidden_T_H, fc1.norm, inverse_T)
        gradients1 = fc1.gradients(normed_T_H, low1_T_R, by_gate_up_T_2F, by_low1_T_R)
        return by_hidden_T_H, None, None, None, *gradients1, *gradients2


def _head_norms(attention: Any) -> list[Any]:
    """Return the norms of a head's queries and keys, None if there is none."""
    return [norm if hasattr(norm, "weight") else None for norm in (attention.q_layernorm, attention.k_layernorm)]


def _is_plain(layer: Any) -> bool:
    """Return whether a layer is what `_FusedLayer` computes, and nothing else."""
    if type(layer).__name__ != "TransformerLayer":
        return False
    config, attention, mlp = layer.config, layer.self_attention, layer.mlp
    if (type(attention).__name__, type(mlp).__name__) != ("SelfAttention", "MLP"):
        return False
    linears = [attention.linear_qkv, attention.linear_proj, mlp.linear_fc1, mlp.linear_fc2]
    return (
        not not_plain(config)
        and all(norm is None or norm.weight.shape == (config.kv_channels,) for norm in _head_norms(attention))
        and all(_is_plain_linear(linear) for linear in linears)
    )


def _is_plain_linear(module: Any) -> bool:
    """Return whether a layer is W x + b, and its adapters B A x, and nothing else."""
    if type(module).__name__ not in _WRAPPERS:
        return type(module).__name__ in _LINEAR
    adapters = module.adapter.values() if isinstance(module.adapter, torch.nn.ModuleDict) else [module.adapter]
    return type(module.to_wrap).__name__ in _LINEAR and all(
        not adapter.is_expert
        and isinstance(adapter.activation, torch.nn.Identity)
        and isinstance(adapter.dropout, torch.nn.Identity)
        for adapter in adapters
        if hasattr(adapter, "linear_in")
    )
