"""The adapters of a Megatron model: its linear layers, and Megatron-Bridge's LoRA on those that were chosen."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from lorarl_api.v1alpha1 import AdapterSpec
from lorarl_trainer.backends.megatron.local_experts import LocalExperts
from lorarl_trainer.lora.config import AdapterConfig
from lorarl_trainer.lora.targets import Linear, Target


def make_lora(adapter: AdapterSpec, targets: Sequence[Target], expert_rank: int | None, experts: LocalExperts) -> Any:
    """Return the Megatron-Bridge transformation that attaches adapters to this rank's part of a model."""
    from megatron.bridge.peft.canonical_lora import CanonicalLoRA, LoRALinearSplitQKV
    from megatron.bridge.peft.lora import LoRA
    from megatron.bridge.peft.utils import is_expert_linear

    names = [name for target in targets if (name := experts.here(target.name)) is not None]
    numbers = AdapterConfig.of(adapter, expert_rank)
    whole_names = frozenset(names)
    # The bridge has no rsLoRA. It divides alpha by the rank.
    alpha = numbers.scale * adapter.rank if adapter.rslora else adapter.alpha
    common = {"target_modules": names, "dim": adapter.rank, "alpha": alpha, "dropout": adapter.dropout}

    class RankByLayer:
        """The bridge's transformation of one layer, with the rank of an expert's adapter for experts."""

        dim: int
        alpha: float
        canonical_mapping: dict[str, set[str]]

        def match(self, m: Any, name: str | None = None, prefix: str | None = None) -> tuple[str, str] | None:
            """Look a layer up by its full name. The bridge compiles a pattern for each layer and target."""
            full_name = f"{prefix}.{name}"
            if full_name not in (self.canonical_mapping or whole_names):
                return None
            self._record_match(full_name, full_name)  # type: ignore[attr-defined]  # the bridge's
            return full_name, full_name

        def transform(self, m: Any, name: str | None = None, prefix: str | None = None) -> Any:
            self.dim, self.alpha = adapter.rank, alpha
            if expert_rank is not None and is_expert_linear(f"{prefix}.{name}"):
                self.dim, self.alpha = expert_rank, numbers.scale * expert_rank
            transformed = super().transform(m, name, prefix)  # type: ignore[misc]  # the bridge's
            if transformed is not m:
                _gather_in_adapters(transformed)
            return transformed

    class RankedLoRA(RankByLayer, LoRA):
        pass

    if adapter.type == "lora":
        return RankedLoRA(**common)

    class PartialCanonicalLoRA(RankByLayer, CanonicalLoRA):
        """CanonicalLoRA that may leave out parts of a fused layer (q_proj and v_proj alone, PEFT's own default)."""

        def transform(self, m: Any, name: str | None = None, prefix: str | None = None) -> Any:
            transformed = super().transform(m, name, prefix)
            if transformed is not m and isinstance(getattr(transformed, "adapter", None), torch.nn.ModuleDict):
                _fill_missing_parts(transformed)
                if isinstance(transformed, LoRALinearSplitQKV) and _heads_are_shared(m.config):
                    transformed._interleave_qkv = partial(_interleave_shared_heads, transformed)
            return transformed

    return PartialCanonicalLoRA(**common)


def _gather_in_adapters(wrapper: Any) -> None:
    """Let a layer's adapters gather the tokens of all ranks, which the bridge leaves to the layer where it can.

    Transformer Engine 2.20 hands gathered tokens out, but drops their gradient: all adapters before would learn less.
    """
    layer = wrapper.to_wrap
    if getattr(layer, "return_layernorm_output_gathered", False):
        layer.return_layernorm_output_gathered = False
        for adapter in adapters_of(wrapper):
            adapter.disable_sequence_parallel_comm = False


def adapters_of(wrapper: Any) -> list[Any]:
    """Return a layer's adapters: one, or those of its parts that have one."""
    adapters = wrapper.adapter.values() if isinstance(wrapper.adapter, torch.nn.ModuleDict) else [wrapper.adapter]
    return [adapter for adapter in adapters if adapter is not None]


def _fill_missing_parts(wrapper: Any) -> None:
    config = wrapper.to_wrap.config
    head = config.kv_channels
    features = {
        "adapter_q": head * config.num_attention_heads,
        "adapter_k": head * config.num_query_groups,
        "adapter_v": head * config.num_query_groups,
        "adapter_gate": config.ffn_hidden_size,
        "adapter_up": config.ffn_hidden_size,
    }
    shards = config.tensor_model_parallel_size
    gathers = not all(adapter.disable_sequence_parallel_comm for adapter in adapters_of(wrapper))
    for part, adapter in wrapper.adapter.items():
        if adapter is None:
            wrapper.adapter[part] = _NoAdapter(features[part] // shards, shards if gathers else 1)


def _heads_are_shared(config: Any) -> bool:
    """Return whether there are fewer key-value heads than tensor-parallel ranks."""
    shared: bool = config.num_query_groups < config.tensor_model_parallel_size
    return shared


def _interleave_shared_heads(wrapper: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return what adapters add to this rank's columns of linear_qkv, given its share of each adapter's output.

    The bridge puts the shares together, which only fits shares of whole groups: it would change the wrong columns.
    """
    from megatron.core.parallel_state import get_tensor_model_parallel_group
    from megatron.core.tensor_parallel import all_gather_last_dim_from_tensor_parallel_region

    group = get_tensor_model_parallel_group()
    whole = (all_gather_last_dim_from_tensor_parallel_region(part, group=group) for part in (query, key, value))
    columns: torch.Tensor = type(wrapper)._interleave_qkv(wrapper, *whole)
    return columns.chunk(group.size(), dim=-1)[group.rank()]


def decoder_linears(model: torch.nn.Module, bridge: Any, experts: LocalExperts) -> list[Linear]:
    """Return the decoder's linear layers with their Hugging Face names, without the output layer and MoE routers.

    Those of experts that other ranks have are among them.
    """
    registry = bridge._model_bridge.mapping_registry()
    found = []
    here = (
        name
        for name, module in model.named_modules()
        if name.startswith("decoder.layers.")
        and not name.endswith(".router")
        and getattr(module, "weight", None) is not None
        and module.weight.dim() == 2
    )
    for name in experts.whole_names(here):
        mapping = registry.megatron_to_hf_lookup(f"{name}.weight")
        if mapping is None:
            continue
        found.append(
            Linear(name, {part: hf_name.removesuffix(".weight") for part, hf_name in hf_parts(mapping).items()})
        )
    return found


def hf_parts(mapping: Any) -> dict[str, str]:
    """Return the Hugging Face parameters that a Megatron parameter is made of, by part; by '' if it is one."""
    return mapping.hf_param if isinstance(mapping.hf_param, dict) else {"": mapping.hf_param}


class _NoAdapter(torch.nn.Module):
    """Stands where a part of a fused layer has no adapter.

    Megatron-Bridge's CanonicalLoRA leaves None there, and then calls it.
    """

    def __init__(self, features: int, gathered: int) -> None:
        """`gathered` is the number of ranks whose tokens an adapter in this place would gather."""
        super().__init__()
        self.features, self._gathered = features, gathered

    def forward(self, hidden: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Return zeros in the shape of an adapter's output."""
        return hidden.new_zeros(hidden.shape[0] * self._gathered, *hidden.shape[1:-1], self.features)
