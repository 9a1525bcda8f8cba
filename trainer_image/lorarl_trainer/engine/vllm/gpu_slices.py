# ruff: noqa: D101  # the classes and methods are vLLM's, and documented there
"""The slices of classes that vLLM has for GPUs alone; `slices.py` has the others, and says what a slice is.

Shape suffixes: N requests of a step, L logits of a step, T tokens of a step, R rows for requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from lorarl_trainer.engine.vllm.slices import LoRARequest, slice_of
from lorarl_trainer.samples.arrays import Ints

if TYPE_CHECKING:
    import torch


# ---- the model runner -----------------------------------------------------------------------------------------------


@slice_of("vllm.v1.worker.gpu.model_runner:GPUModelRunner")
class GPUModelRunner(Protocol):
    """What the V2 runner alone has."""

    lora_state: LoraState


@slice_of("vllm.v1.worker.gpu.lora_utils:LoraState")
class LoraState(Protocol):
    lora_requests: dict[str, LoRARequest]
    get_activate_loras: Callable[[list[str]], set[LoRARequest]]
    make_lora_inputs: Callable[..., tuple[tuple[int, ...], tuple[int, ...], set[LoRARequest]]]


# ---- the sampler ----------------------------------------------------------------------------------------------------


@slice_of("vllm.v1.worker.gpu.buffer_utils:UvaBackedTensor")
class UvaBackedTensor(Protocol):
    np: Any
    gpu: torch.Tensor


@slice_of("vllm.model_executor.layers.logits_processor:LogitsProcessor")
class LogitsProcessor(Protocol):
    _gather_logits: Callable[[torch.Tensor], torch.Tensor]
    """Returns the logits of all tensor-parallel ranks from this one's."""


@slice_of("vllm.distributed.parallel_state:GroupCoordinator")
class GroupCoordinator(Protocol):
    world_size: int
    rank_in_group: int

    def all_gather(self, input_: torch.Tensor, dim: int) -> torch.Tensor:
        """Concatenated along a dimension."""


@slice_of("vllm.v1.worker.gpu.sample.states:SamplingStates")
class SamplingStates(Protocol):
    vocab_size: int
    temperature: UvaBackedTensor
    """[R], float32."""
    top_p: UvaBackedTensor
    """[R], float32; 1 keeps all."""
    top_k: UvaBackedTensor
    """[R], int32; the size of the vocabulary keeps all."""
    min_p: UvaBackedTensor
    """[R], float32; 0 keeps all."""
    seeds: UvaBackedTensor
    """[R], int64."""

    def apply_min_p(self, logits: torch.Tensor, expanded_idx_mapping: torch.Tensor, idx_mapping_np: Ints) -> None: ...
    def apply_top_k_top_p(
        self, logits: torch.Tensor, expanded_idx_mapping: torch.Tensor, idx_mapping_np: Ints
    ) -> torch.Tensor: ...


@slice_of("vllm.v1.worker.gpu.states:RequestState")
class RequestState(Protocol):
    prefill_len: UvaBackedTensor
    """[R], int32."""


@slice_of("vllm.v1.worker.gpu.sample.sampler:Sampler")
class Sampler(Protocol):
    sampling_states: SamplingStates
    req_states: RequestState

    def returns_logprobs(self, idx_mapping_np: Ints) -> bool: ...


@slice_of("vllm.v1.worker.gpu.input_batch:InputBatch")
class InputBatch(Protocol):
    num_reqs: int
    idx_mapping: torch.Tensor
    """The row of each request, [N]."""
    idx_mapping_np: Ints
    expanded_idx_mapping: torch.Tensor
    """The row that each row of logits belongs to, [L]."""
    seq_lens: torch.Tensor
    """[N]."""
    positions: torch.Tensor
    """[T]."""
    logits_indices: torch.Tensor
    """The token that each row of logits follows, [L]."""
    cu_num_logits: torch.Tensor
    """[N + 1]."""


# ---- attention ------------------------------------------------------------------------------------------------------


@slice_of("vllm.v1.attention.backends.flash_attn:FlashAttentionImpl")
class FlashAttentionImpl(Protocol):
    """Attributes of an object are vLLM's; its class's are ours to replace."""

    head_size: int
    num_kv_heads: int
    scale: float
    sliding_window: tuple[int, int]
    """Tokens to the left and right that a token sees; (-1, -1) for all."""
    logits_soft_cap: float
    """0 for none."""
    alibi_slopes: torch.Tensor | None
    sinks: torch.Tensor | None
    attn_type: str
    kv_cache_dtype: str
    vllm_flash_attn_version: int


@slice_of("vllm.v1.attention.backends.flash_attn:FlashAttentionMetadata")
class FlashAttentionMetadata(Protocol):
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    """What the longest sequence may have, where a graph is captured."""
    seq_lens: torch.Tensor
    """[N], int32; 0 where a graph's batch is padded."""
    block_table: torch.Tensor
    """[N, blocks], int32."""
    use_cascade: bool
    causal: bool | torch.Tensor
    sliding_window: tuple[int, int] | None
    """Of the group of layers; None leaves it to each layer."""


# ---- memory ---------------------------------------------------------------------------------------------------------


@slice_of("vllm.device_allocator:AllocationData")
class AllocationData(Protocol):
    handle: tuple[Any, int, Any, Any]
    """Item 1 is the size in bytes."""
    tag: str
    is_asleep: bool


@slice_of("vllm.distributed.device_communicators.cuda_wrapper:CudaRTLibrary")
class CudaRTLibrary(Protocol):
    def cudaMemcpy(self, dst: int, src: int, count: int) -> None: ...  # noqa: N802


@slice_of("vllm.device_allocator.cumem:CuMemAllocator")
class CuMemAllocator(Protocol):
    pointer_to_data: Mapping[int, AllocationData]
    get_instance: Callable[[], CuMemAllocator]
