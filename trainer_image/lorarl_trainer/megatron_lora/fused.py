"""A frozen linear layer and its adapter in one step: y = W x + b + scale B A x, with x normalised where the layer does that.

Megatron-Bridge adds an adapter's output to the layer's in separate passes over the widest activations there are (multiply by the scale,
join the parts, add), each as long as reading them takes. Here the second matrix product adds into the first one's output, forward and
backward; the parts of a fused layer (q, k, v; gate, up) are one adapter with a block-diagonal B. Nothing is kept for weights that
have no gradient.

For one rank a model (no tensor parallelism) and adapters without dropout; elsewhere Megatron-Bridge's own layers do the work.
Shape suffixes: T tokens, I inputs, O outputs, R rank of the adapter (of all parts).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.nn.functional import layer_norm, rms_norm


def fuse_adapters(model: torch.nn.Module) -> int:
    """Let a model's linear layers and their adapters compute together; return how many do."""
    from megatron.bridge.peft.canonical_lora import LoRALinearSplitFC1UpGate, LoRALinearSplitQKV
    from megatron.bridge.peft.lora_layers import LoRALinear

    count = 0
    for module in model.modules():
        if type(module) not in (LoRALinear, LoRALinearSplitFC1UpGate, LoRALinearSplitQKV):
            continue
        parts, rows = _parts(module)
        if all(_is_plain(part) for part in parts if not isinstance(part, int)):
            module.forward = partial(_forward, module, parts, rows)
            count += 1
    return count


def _forward(wrapper: Any, parts: list[Any], rows: torch.Tensor | None, hidden: torch.Tensor, *_: Any, **__: Any) -> tuple[Any, Any]:
    """Return what the wrapper's own forward does: the output, and the layer's bias where that is added later."""
    layer = wrapper.to_wrap
    if not wrapper._adapter_enabled:
        output, bias, _ = wrapper.base_linear_forward(hidden)
        return output, bias
    hidden = _normalised(layer, hidden)
    adapters = [part for part in parts if not isinstance(part, int)]
    down_R_I = _joined([adapter.linear_in.weight for adapter in adapters])
    up_O_R = _up(parts, rows)
    bias = layer.bias if layer.bias is not None and layer.bias.numel() else None
    bias_later = getattr(layer, "te_return_bias", getattr(layer, "skip_bias_add", False))
    output = _LinearWithAdapter.apply(
        hidden.flatten(0, -2), layer.weight, None if bias_later else bias, down_R_I, up_O_R, adapters[0].alpha / adapters[0].dim
    )
    return output.view(*hidden.shape[:-1], -1), bias if bias_later else None


class _LinearWithAdapter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_T_I: torch.Tensor,
        weight_O_I: torch.Tensor,
        bias_O: torch.Tensor | None,
        down_R_I: torch.Tensor,
        up_O_R: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        output_T_O = hidden_T_I @ weight_O_I.t() if bias_O is None else torch.addmm(bias_O, hidden_T_I, weight_O_I.t())
        low_T_R = hidden_T_I @ down_R_I.t()
        output_T_O.addmm_(low_T_R, up_O_R.t(), alpha=scale)
        ctx.scale = scale
        ctx.save_for_backward(hidden_T_I, low_T_R, weight_O_I, down_R_I, up_O_R)
        return output_T_O

    @staticmethod
    def backward(ctx: Any, by_output_T_O: torch.Tensor) -> Any:
        hidden_T_I, low_T_R, weight_O_I, down_R_I, up_O_R = ctx.saved_tensors
        by_low_T_R = (by_output_T_O @ up_O_R).mul_(ctx.scale)
        by_hidden_T_I = None
        if ctx.needs_input_grad[0]:
            by_hidden_T_I = (by_output_T_O @ weight_O_I).addmm_(by_low_T_R, down_R_I)
        by_down_R_I = by_low_T_R.t() @ hidden_T_I
        by_up_O_R = (by_output_T_O.t() @ low_T_R).mul_(ctx.scale)
        return by_hidden_T_I, None, None, by_down_R_I, by_up_O_R, None


def _parts(wrapper: Any) -> tuple[list[Any], torch.Tensor | None]:
    """Return the adapters of the layer's parts (a number of outputs where a part has none), and how their rows are interleaved."""
    if not isinstance(wrapper.adapter, torch.nn.ModuleDict):
        return [wrapper.adapter], None
    config, adapters = wrapper.to_wrap.config, wrapper.adapter
    if "adapter_gate" in adapters:
        return [_or_size(adapters["adapter_gate"]), _or_size(adapters["adapter_up"])], None
    # Megatron's linear_qkv has, for each key-value group, its query heads, its key and its value.
    groups, head = config.num_query_groups, config.kv_channels
    queries = torch.arange(config.num_attention_heads * head).view(groups, -1)
    keys = queries.numel() + torch.arange(groups * head).view(groups, -1)
    rows = torch.cat([queries, keys, keys + keys.numel()], dim=1).flatten()
    return [_or_size(adapters[f"adapter_{part}"]) for part in "qkv"], rows.to(wrapper.to_wrap.weight.device)


def _or_size(adapter: Any) -> Any:
    return adapter if hasattr(adapter, "linear_in") else adapter.features


def _is_plain(adapter: Any) -> bool:
    """Whether an adapter is B A x and nothing else."""
    return not adapter.is_expert and isinstance(adapter.activation, torch.nn.Identity) and isinstance(adapter.dropout, torch.nn.Identity)


def _joined(matrices: list[torch.Tensor]) -> torch.Tensor:
    return matrices[0] if len(matrices) == 1 else torch.cat(matrices)


def _up(parts: list[Any], rows: torch.Tensor | None) -> torch.Tensor:
    """Return B of all parts: each part's outputs see its own columns of the rank alone."""
    if len(parts) == 1:
        weight: torch.Tensor = parts[0].linear_out.weight
        return weight
    some = next(part for part in parts if not isinstance(part, int)).linear_out.weight
    blocks = [some.new_zeros(part, 0) if isinstance(part, int) else part.linear_out.weight for part in parts]
    up = torch.block_diag(*blocks)
    return up if rows is None else up.index_select(0, rows)


def _normalised(layer: Any, hidden: torch.Tensor) -> torch.Tensor:
    """Apply the norm that Transformer Engine's LayerNormLinear begins with."""
    weight = getattr(layer, "layer_norm_weight", None)
    if weight is None:
        return hidden
    if layer.zero_centered_gamma:
        weight = weight + 1
    if layer.normalization == "RMSNorm":
        return rms_norm(hidden, weight.shape, weight, layer.eps)
    return layer_norm(hidden, weight.shape, weight, layer.layer_norm_bias, layer.eps)
