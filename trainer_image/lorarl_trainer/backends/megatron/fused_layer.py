"""A whole decoder layer with its adapters in a few steps: what Megatron and Megatron-Bridge do in a hundred small ones.

Megatron's layer consists of many small operations, and keeps what a frozen weight has no use for. What is cheap (norms,
SwiGLU, rotation) is computed again in the backward pass here: for each token a layer keeps two hidden states, q, k, v,
the attention's output, gate and up. Keys of a shared prompt, which attention wants once per completion, are gathered
again. `fused_linear` says what becomes of the adapters, and how several ranks share a layer.

This is for layers of Llama's kind (RMSNorm, rotary positions, SwiGLU or a mixture of such), with adapters without
dropout. Megatron's own code runs all others. `planning.usual` decides which way a job's layers go.
"""

from __future__ import annotations

from typing import Any

import torch

from lorarl_trainer.backends.megatron.collectives import Ranks
from lorarl_trainer.backends.megatron.fused_experts import Compared, FusedExperts, are_plain_experts
from lorarl_trainer.backends.megatron.fused_linear import FusedLinear, is_plain_linear, whole_parameters
from lorarl_trainer.backends.megatron.fused_steps import (
    Taken,
    add_mlp,
    add_projection,
    attend_packed,
    norm_whole,
    project_normed,
)
from lorarl_trainer.backends.megatron.own_heads import OwnHeads
from lorarl_trainer.backends.megatron.packed_attention import Current
from lorarl_trainer.backends.megatron.plain_config import not_plain
from lorarl_trainer.backends.stacked import Stacked
from lorarl_trainer.kernels.heads import Heads

_WHOLE_NORMS = "OLMoESelfAttention"
"""Megatron-Bridge's attention that normalises all heads together."""


def fuse_layers(
    model: torch.nn.Module,
    current: Current,
    compared: Compared | None = None,
    *,
    replay: bool = False,
    whole: bool = False,
) -> list[FusedLayer]:
    """Let those decoder layers of a Megatron GPT model that can compute in a few steps do so, and return them.

    `compared` and `replay` are of the rollout's experts, and `whole` of the weights of experts, see `FusedExperts`.
    """
    layers: Any = model.decoder.layers
    fused = []
    for number, layer in enumerate(layers):
        if _is_plain(layer):
            experts = None
            if layer.config.num_moe_experts:
                eps = layer.config.layernorm_epsilon
                experts = FusedExperts(layer, eps, compared or Compared(), follows=replay, whole=whole)
            fused.append(FusedLayer(layer, current, number, experts))
            layer.forward = fused[-1].forward
    return fused


class FusedLayer:
    """The steps of one layer, on the parameters of Megatron's.

    Attributes:
        linears: linear_qkv, linear_proj and, where there are no experts, linear_fc1 and linear_fc2.
    """

    def __init__(self, layer: Any, current: Current, number: int, experts: FusedExperts | None) -> None:
        """Take a layer of Megatron's, its number, and what stands for its experts; None if it has none."""
        attention, config, eps = layer.self_attention, layer.config, layer.config.layernorm_epsilon
        ranks = Ranks.of(attention.tp_group)
        self._layer, self._current, self._scale = layer, current, attention.core_attention.scale
        groups, size = max(1, config.num_query_groups // ranks.size), config.kv_channels
        queries = config.num_attention_heads // ranks.size // groups
        width = (queries + 2) * size
        self._query = Heads(groups * queries, queries, 0, width, size)
        self._key = Heads(groups, 1, queries * size, width, size)
        self._value = Heads(groups, 1, (queries + 1) * size, width, size)
        qkv, gate_up = [queries * size, size, size], [config.ffn_hidden_size // ranks.size] * 2
        own = OwnHeads.of(config, ranks)
        self.linears = [
            FusedLinear(attention.linear_qkv, ranks, qkv, "qkv", layer.input_layernorm, eps, own),
            FusedLinear(attention.linear_proj, ranks),
        ]
        self._number, self._experts = number, experts
        if self._experts is None:
            fc1, fc2 = layer.mlp.linear_fc1, layer.mlp.linear_fc2
            self.linears += [
                FusedLinear(fc1, ranks, gate_up, ("gate", "up"), layer.pre_mlp_layernorm, eps),
                FusedLinear(fc2, ranks),
            ]
        self._ranks = ranks
        norms = [None if norm is None else (norm.weight, eps) for norm in _head_norms(attention)]
        self._head_norms, self._whole_norms = norms, []
        if type(attention).__name__ == _WHOLE_NORMS:
            kinds = zip((self._query, self._key), norms, strict=True)
            self._head_norms, self._whole_norms = [None, None], [(heads, norm) for heads, norm in kinds if norm]

    def forward(self, hidden_states: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
        """Return the layer's output as Megatron's layer does, [S, 1, H]: of this rank's share of the tokens."""
        qkv, proj, *mlp = self.linears
        of_qkv, of_proj, *of_mlp = whole_parameters(self.linears, self._ranks)
        hidden_S_H = hidden_states.flatten(0, 1)
        qkv_T_O, residual_S_H = project_normed(hidden_S_H, qkv, of_qkv)
        if self._whole_norms:
            qkv_T_O = norm_whole(qkv_T_O, self._whole_norms)
        attended_T_I = attend_packed(qkv_T_O, self._heads(), self._current.get().extents, self._scale)
        hidden_S_H = add_projection(residual_S_H, attended_T_I, proj, of_proj)
        if self._experts is not None:
            routing = self._current.routing
            if routing is not None:
                routing = routing[:, self._number].chunk(self._ranks.size)[self._ranks.rank]
            trips = self._current.trips
            hidden_S_H = self._experts.add(hidden_S_H, routing, None if trips is None else trips[self._number])
        else:
            recompute = self._layer.recompute_mlp and self._layer.training
            (fc1, fc2), (of_fc1, of_fc2) = mlp, of_mlp
            hidden_S_H = add_mlp(hidden_S_H, fc1, fc2, [*of_fc1, *of_fc2], recompute=recompute)
        return hidden_S_H.view(hidden_states.shape), None

    def of_experts(self) -> list[torch.Tensor]:
        """Return the weights that all experts share, of which Megatron's are views: gate and up, and down."""
        return [] if self._experts is None else self._experts.weights()

    def stacked(self) -> list[Stacked]:
        """Return the parameters that are computed with as one tensor: the adapters of experts."""
        return [] if self._experts is None else self._experts.adapters()

    def _heads(self) -> list[Taken]:
        """Return what is taken for queries, keys and values."""
        keys, angles = self._current.get().keys, self._current.angles
        return [
            (self._query, None, angles, self._head_norms[0]),
            (self._key, keys, angles, self._head_norms[1]),
            (self._value, keys, None, None),
        ]


def _head_norms(attention: Any) -> list[Any]:
    """Return the norms of a head's queries and keys in Megatron's attention, None if there is none."""
    return [norm if hasattr(norm, "weight") else None for norm in (attention.q_layernorm, attention.k_layernorm)]


def _norms_fit(attention: Any, config: Any) -> bool:
    """Return whether the norms of queries and keys are of a head's size, or of all heads' on one rank."""
    sizes = [(config.kv_channels,)] * 2
    if type(attention).__name__ == _WHOLE_NORMS:
        heads = (config.num_attention_heads, config.num_query_groups)
        sizes = [(config.kv_channels * count,) for count in heads]
        if config.tensor_model_parallel_size > 1:
            return False
    norms = zip(_head_norms(attention), sizes, strict=True)
    return all(norm is None or norm.weight.shape == size for norm, size in norms)


def _is_plain(layer: Any) -> bool:
    """Return whether a layer is what `FusedLayer` computes, and nothing else."""
    if type(layer).__name__ != "TransformerLayer":
        return False
    config, attention, mlp = layer.config, layer.self_attention, layer.mlp
    if type(attention).__name__ not in ("SelfAttention", _WHOLE_NORMS):
        return False
    linears = [attention.linear_qkv, attention.linear_proj]
    if type(mlp).__name__ == "MLP":
        linears += [mlp.linear_fc1, mlp.linear_fc2]
    elif not are_plain_experts(mlp):
        return False
    return (
        not not_plain(config)
        and config.sequence_parallel == (config.tensor_model_parallel_size > 1)
        and _norms_fit(attention, config)
        and all(is_plain_linear(linear) for linear in linears)
    )
