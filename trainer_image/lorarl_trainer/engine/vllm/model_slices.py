# ruff: noqa: D101  # the classes and methods are vLLM's, and documented there
"""The slices of vLLM's classes of models: how they name their weights, and their experts. See `slices.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from lorarl_trainer.engine.vllm.slices import slice_of

if TYPE_CHECKING:
    import torch


# ---- models ---------------------------------------------------------------------------------------------------------


@slice_of("vllm.model_executor.models.registry:_LazyRegisteredModel")
class RegisteredModel(Protocol):
    def load_model_cls(self) -> type[torch.nn.Module]: ...


@slice_of("vllm.model_executor.models.registry:_ModelRegistry")
class ModelRegistry(Protocol):
    models: Mapping[str, RegisteredModel]
    """By architecture."""

    def register_model(self, model_arch: str, model_cls: type[torch.nn.Module]) -> None: ...


@slice_of("vllm.model_executor.layers.linear:QKVParallelLinear")
class QKVParallelLinear(Protocol):
    num_heads: int
    num_kv_heads: int
    head_size: int


@slice_of("vllm.model_executor.layers.linear:MergedColumnParallelLinear")
class MergedColumnParallelLinear(Protocol):
    output_sizes: Sequence[int]


@slice_of("vllm.model_executor.layers.linear:LinearBase")
class LinearBase(Protocol):
    quant_method: Any


@slice_of("vllm.model_executor.models.interfaces:SupportsLoRA")
class SupportsLoRA(Protocol):
    supports_lora: bool
    packed_modules_mapping: Mapping[str, list[str]]
    """The layers of Hugging Face's that a fused layer is made of."""


@slice_of("vllm.model_executor.models.transformers.base:Base")
class NamesWeights(Protocol):
    """A model whose weights Hugging Face names otherwise. Others have no such attribute."""

    hf_to_vllm_mapper: WeightsMapper


@slice_of("vllm.model_executor.models.utils:WeightsMapper")
class WeightsMapper(Protocol):
    def get_unstacked_mapper(self) -> WeightsMapper: ...
    def apply_list(self, values: list[str]) -> list[str]: ...


@slice_of("vllm.model_executor.model_loader.base_loader:BaseModelLoader")
class BaseModelLoader(Protocol):
    def download_model(self, model_config: Any) -> None: ...
    def load_model(self, vllm_config: Any, model_config: Any) -> torch.nn.Module: ...
    def load_weights(self, model: torch.nn.Module, model_config: Any) -> None: ...


# ---- layers that keep a state ---------------------------------------------------------------------------------------


@slice_of("vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn:QwenGatedDeltaNetAttention")
class DeltaNet(Protocol):
    prefix: str
    in_proj_qkvz: Callable[[torch.Tensor], tuple[torch.Tensor, Any]]
    in_proj_ba: Callable[[torch.Tensor], tuple[torch.Tensor, Any]]
    conv1d: Any
    A_log: torch.Tensor
    dt_bias: torch.Tensor
    conv_dim: int
    conv_kernel_size: int
    key_dim: int
    value_dim: int
    num_k_heads: int
    num_v_heads: int
    head_k_dim: int
    head_v_dim: int
    kv_cache: Sequence[torch.Tensor]
    """The convolution's last inputs, [slots, kernel - 1, channels] or with the last two swapped, and the states."""

    def _output_projection(self, core_attn_out: torch.Tensor, z: torch.Tensor) -> torch.Tensor: ...


@slice_of("vllm.v1.attention.backends.gdn_attn:GDNAttentionMetadata")
class DeltaNetMetadata(Protocol):
    non_spec_query_start_loc: torch.Tensor
    """Where each sequence's tokens of the step begin, and where the last ones end."""
    non_spec_state_indices_tensor: torch.Tensor
    """Each sequence's place in the cache."""


@slice_of("vllm.model_executor.layers.mamba.mamba_mixer2:MambaMixer2")
class MambaMixer(Protocol):
    prefix: str
    conv1d: Any
    A: torch.Tensor
    D: torch.Tensor
    dt_bias: torch.Tensor
    conv_dim: int
    conv_kernel_size: int
    intermediate_size: int
    num_heads: int
    n_groups: int
    kv_cache: Sequence[torch.Tensor]
    """As a delta net's. A state is [heads, values, its values for each of those]."""


@slice_of("vllm.v1.attention.backends.mamba2_attn:Mamba2AttentionMetadata")
class MambaMetadata(Protocol):
    num_decodes: int
    """Sequences with one token, which come first. They have a state."""
    num_prefills: int
    query_start_loc_p: torch.Tensor
    """Where the tokens of each other sequence begin after those, and where the last ones end."""
    has_initial_states_p: torch.Tensor
    state_indices_tensor_d: torch.Tensor
    """Each sequence's place in the cache."""
    state_indices_tensor_p: torch.Tensor


@slice_of("vllm.v1.attention.backends.cpu_attn:CPUAttentionMetadata")
class AttentionMetadata(Protocol):
    seq_lens: torch.Tensor
    """Each sequence's tokens, with those of the step."""


# ---- experts --------------------------------------------------------------------------------------------------------


@slice_of("vllm.model_executor.layers.fused_moe.config:FusedMoEParallelConfig")
class FusedMoEParallelConfig(Protocol):
    tp_size: int
    tp_rank: int


@slice_of("vllm.model_executor.layers.fused_moe.config:FusedMoEConfig")
class FusedMoEConfig(Protocol):
    num_experts: int
    experts_per_token: int
    moe_parallel_config: FusedMoEParallelConfig


@slice_of("vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method:UnquantizedFusedMoEMethod")
class ExpertWeights(Protocol):
    """What this method registers at its layer."""

    w13_weight: torch.Tensor
    """[experts, gate and up, hidden]."""
    w2_weight: torch.Tensor
    """[experts, hidden, inner]."""


@slice_of("vllm.model_executor.layers.fused_moe.routed_experts:RoutedExperts")
class RoutedExperts(Protocol):
    quant_method: Any


@slice_of("vllm.model_executor.layers.fused_moe.router.base_router:BaseRouter")
class Router(Protocol):
    def set_capture_fn(self, capture_fn: Callable[[torch.Tensor], None] | None) -> None: ...


@slice_of("vllm.model_executor.layers.fused_moe.runner.moe_runner:MoERunner")
class MoERunner(Protocol):
    moe_config: FusedMoEConfig
    router: Router
    routed_experts: Any
    _quant_method: Any

    def _replace_quant_method(self, quant_method: Any) -> None: ...


@slice_of("vllm.model_executor.layers.fused_moe.fused_moe_method_base:FusedMoEMethodBase")
class FusedMoEMethod(Protocol):
    moe: FusedMoEConfig
    moe_quant_config: Any

    def create_weights(self, *arguments: Any, **options: Any) -> None: ...
    def get_fused_moe_quant_config(self, layer: Any) -> Any: ...
    def apply(self, *arguments: Any, **options: Any) -> torch.Tensor: ...


@slice_of("vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method:UnquantizedFusedMoEMethod")
class CpuExpertsMethod(Protocol):
    cpu_fused_moe: Any


@slice_of("vllm.model_executor.layers.fused_moe.cpu_fused_moe:CPUFusedMOE")
class CPUFusedMOE(Protocol):
    isa: str
    forward_method: Callable[..., torch.Tensor]


@slice_of("vllm.lora.layers.fused_moe:FusedMoEWithLoRA")
class FusedMoEWithLoRA(Protocol):
    base_layer: MoERunner
    moe_config: FusedMoEConfig
    tp_size: int
    tp_rank: int
    device: torch.device
    hidden_size: int
    intermediate_size_per_partition: int
    local_num_experts: int
    n_slices: int
    _w13_slices: int
    w13_lora_a_stacked: tuple[torch.Tensor, ...]
    w13_lora_b_stacked: tuple[torch.Tensor, ...]
    w2_lora_a_stacked: tuple[torch.Tensor, ...]
    w2_lora_b_stacked: tuple[torch.Tensor, ...]

    def can_replace_layer(self, **arguments: Any) -> bool: ...
    def create_lora_weights(self, max_loras: int, lora_config: Any, model_config: Any) -> None: ...
    def set_mapping(self, punica_wrapper: Any) -> None: ...


@slice_of("vllm.forward_context:ForwardContext")
class ForwardContext(Protocol):
    attn_metadata: Mapping[str, Any] | None
    """By layer; None in vLLM's trial run."""
    slot_mapping: Mapping[str, torch.Tensor]
    """By layer, [tokens]: where in the KV cache a token's keys and values go."""
