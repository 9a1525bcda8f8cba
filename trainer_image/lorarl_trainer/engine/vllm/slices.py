# ruff: noqa: D101  # the classes and methods are vLLM's, and documented there
"""The attributes of vLLM's objects that lorarl reads, calls or replaces: a protocol per class, named after vLLM's own.

Objects are compared with these when the engine starts (`binding.checked`). A test records every attribute as vLLM
defines it.

Shape suffixes: N requests of a step, L logits of a step, T tokens of a step, R rows for requests, S tokens per request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from lorarl_trainer.samples.arrays import Floats, Ints

if TYPE_CHECKING:
    import torch

SLICES: list[tuple[str, type]] = []  # a class in vLLM ("module:Class"), and its protocol


def slice_of[T](*classes: str) -> Callable[[type[T]], type[T]]:
    """Name the classes of vLLM that a protocol is a slice of."""

    def register(protocol: type[T]) -> type[T]:
        SLICES.extend((name, protocol) for name in classes)
        return protocol

    return register


def members(protocol: type) -> list[str]:
    """Return the names that a protocol lists."""
    methods = [name for name, value in vars(protocol).items() if callable(value) and not name.startswith("__")]
    return sorted({*protocol.__annotations__, *methods})


@slice_of("vllm.platforms.interface:Platform")
class Platform(Protocol):
    def is_cuda(self) -> bool: ...


# ---- requests and the engine's core ---------------------------------------------------------------------------------


@slice_of("vllm.sampling_params:SamplingParams")
class SamplingParams(Protocol):
    all_stop_token_ids: Collection[int]
    seed: int | None
    extra_args: dict[str, Any] | None


@slice_of("vllm.lora.request:LoRARequest")
class LoRARequest(Protocol):
    lora_int_id: int


@slice_of("vllm.v1.request:Request")
class Request(Protocol):
    request_id: str
    sampling_params: SamplingParams | None
    lora_request: LoRARequest | None
    prompt_token_ids: list[int] | None
    all_token_ids: ConstantList
    num_prompt_tokens: int
    num_output_tokens: int
    num_tokens: int
    num_computed_tokens: int
    num_preemptions: int
    max_tokens: int

    def append_output_token_ids(self, token_ids: list[int]) -> None: ...


@slice_of("vllm.v1.utils:ConstantList")
class ConstantList(Protocol):
    def copy(self) -> list[int]: ...


@slice_of("vllm.v1.outputs:LogprobsLists")
class LogprobsLists(Protocol):
    logprobs: Floats
    """[tokens, 1 + top log-probabilities]: column 0 belongs to the sampled token."""
    sampled_token_ranks: Ints
    """[tokens]: our samplers put there how many tokens were possible."""


@slice_of("vllm.v1.engine:FinishReason")
class FinishReason(Protocol):
    STOP: Any
    LENGTH: Any


@slice_of("vllm.v1.engine:EngineCoreOutput")
class EngineCoreOutput(Protocol):
    request_id: str
    new_token_ids: list[int]
    new_logprobs: LogprobsLists | None
    finish_reason: Any


@slice_of("vllm.v1.engine:EngineCoreOutputs")
class EngineCoreOutputs(Protocol):
    outputs: list[EngineCoreOutput]


@slice_of("vllm.v1.core.sched.scheduler:Scheduler")
class Scheduler(Protocol):
    max_num_running_reqs: int
    max_num_scheduled_tokens: int
    max_model_len: int
    kv_cache_config: KVCacheConfig
    kv_cache_manager: KVCacheManager
    requests: dict[str, Request]
    waiting: RequestQueue
    running: list[Request]
    finished_req_ids: set[str]
    use_v2_model_runner: bool

    def has_requests(self) -> bool: ...


@slice_of("vllm.v1.engine.core:EngineCore")
class EngineCore(Protocol):
    scheduler: Scheduler
    batch_queue: Collection[Any] | None
    step_fn: Callable[[], tuple[Mapping[int, EngineCoreOutputs] | None, bool]]
    request_block_hasher: Callable[[Request], list[Any]] | None

    def add_request(self, request: Request) -> None: ...


@slice_of("vllm.v1.engine.core_client:InprocClient")
class InprocClient(Protocol):
    engine_core: EngineCore


@slice_of("vllm.v1.engine.llm_engine:LLMEngine")
class LLMEngine(Protocol):
    engine_core: InprocClient

    def from_engine_args(self, engine_args: Any) -> LLMEngine: ...
    def collective_rpc(self, method: Callable[[Worker], Any]) -> list[Any]: ...
    def reset_prefix_cache(self) -> bool: ...
    def add_lora(self, lora_request: LoRARequest) -> bool: ...
    def remove_lora(self, lora_id: int) -> bool: ...


# ---- the scheduler --------------------------------------------------------------------------------------------------


@slice_of("vllm.v1.kv_cache_interface:KVCacheSpec")
class KVCacheSpec(Protocol):
    block_size: int


@slice_of("vllm.v1.kv_cache_interface:KVCacheGroupSpec")
class KVCacheGroupSpec(Protocol):
    kv_cache_spec: KVCacheSpec


@slice_of("vllm.v1.kv_cache_interface:UniformTypeKVCacheSpecs")
class UniformTypeKVCacheSpecs(Protocol):
    kv_cache_specs: dict[str, Any]
    """By layer."""


@slice_of("vllm.v1.kv_cache_interface:KVCacheConfig")
class KVCacheConfig(Protocol):
    kv_cache_groups: Sequence[KVCacheGroupSpec]
    num_blocks: int


@slice_of("vllm.v1.core.sched.request_queue:FCFSRequestQueue")
class RequestQueue(Protocol):
    def __bool__(self) -> bool: ...
    def add_request(self, request: Request) -> None: ...
    def __len__(self) -> int: ...
    def peek_request(self) -> Request: ...
    def pop_request(self) -> Request: ...
    def prepend_request(self, request: Request) -> None: ...
    def remove_requests(self, requests: Iterable[Request]) -> None: ...


@slice_of("vllm.v1.core.kv_cache_manager:KVCacheManager")
class KVCacheManager(Protocol):
    block_pool: BlockPool
    coordinator: KVCacheCoordinator

    def new_step_starts(self) -> None: ...
    def get_computed_blocks(self, request: Request) -> tuple[Any, int, Any]: ...
    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: Any = None,
        *,
        full_sequence_must_fit: bool = False,
        has_scheduled_reqs: bool = True,
    ) -> KVCacheBlocks | None: ...
    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]: ...
    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None: ...
    def free(self, request: Request) -> None: ...


@slice_of("vllm.v1.core.kv_cache_manager:KVCacheBlocks")
class KVCacheBlocks(Protocol):
    def get_block_ids(self) -> tuple[list[int], ...]: ...


@slice_of("vllm.v1.core.kv_cache_coordinator:KVCacheCoordinator")
class KVCacheCoordinator(Protocol):
    single_type_managers: Sequence[SingleTypeKVCacheManager]


@slice_of("vllm.v1.core.single_type_kv_cache_manager:SingleTypeKVCacheManager")
class SingleTypeKVCacheManager(Protocol):
    req_to_blocks: Mapping[str, list[KVCacheBlock]]


@slice_of("vllm.v1.core.block_pool:BlockPool")
class BlockPool(Protocol):
    def get_num_free_blocks(self) -> int: ...
    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]: ...


@slice_of("vllm.v1.core.kv_cache_utils:KVCacheBlock")
class KVCacheBlock(Protocol):
    block_id: int


@slice_of("vllm.v1.outputs:ModelRunnerOutput")
class ModelRunnerOutput(Protocol):
    req_ids: list[str]
    sampled_token_ids: list[list[int]]
    logprobs: LogprobsLists | None


# ---- workers and model runners --------------------------------------------------------------------------------------


@slice_of("vllm.config.cache:CacheConfig")
class CacheConfig(Protocol):
    kv_cache_memory_bytes: int | None


@slice_of("vllm.config.vllm:VllmConfig")
class VllmConfig(Protocol):
    cache_config: CacheConfig


@slice_of("vllm.v1.worker.gpu_worker:Worker", "vllm.v1.worker.cpu_worker:CPUWorker")
class Worker(Protocol):
    model_runner: ModelRunner
    device: torch.device
    vllm_config: VllmConfig

    def init_device(self) -> None: ...
    def load_model(self) -> None: ...
    def determine_available_memory(self) -> int: ...
    def initialize_from_config(self, kv_cache_config: Any) -> None: ...
    def compile_or_warm_up_model(self) -> Any: ...


@slice_of("vllm.v1.worker.gpu.model_runner:GPUModelRunner", "vllm.v1.worker.gpu_model_runner:GPUModelRunner")
class ModelRunner(Protocol):
    """The V2 runner, which GPUs have, and the V1 runner, which CPUs have."""

    sampler: Any
    lora_manager: WorkerLoRAManager
    model: torch.nn.Module
    capture_model: Callable[..., int]

    def post_kv_cache_wake_up(self) -> None: ...


@slice_of("vllm.v1.worker.gpu_input_batch:CachedRequestState")
class CachedRequestState(Protocol):
    """A request as the V1 runner knows it."""

    sampling_params: SamplingParams | None
    generator: Any
    output_token_ids: list[int]


@slice_of("vllm.v1.worker.gpu_input_batch:InputBatch")
class InputBatch(Protocol):
    """The requests of a step of the V1 runner."""

    def add_request(self, request: CachedRequestState) -> int: ...


# ---- adapters -------------------------------------------------------------------------------------------------------


@slice_of("vllm.config.lora:LoRAConfig")
class LoRAConfig(Protocol):
    max_loras: int
    lora_dtype: torch.dtype


@slice_of("vllm.lora.worker_manager:LRUCacheWorkerLoRAManager")
class WorkerLoRAManager(Protocol):
    lora_config: LoRAConfig
    vocab_size: int
    _adapter_manager: LoRAModelManager


@slice_of("vllm.lora.model_manager:LRUCacheLoRAModelManager")
class LoRAModelManager(Protocol):
    model: Any
    modules: Mapping[str, LoRALayer]
    packed_modules: Mapping[str, list[str]]
    lora_index_to_id: list[int | None]
    _registered_adapters: MutableMapping[int, Any]
    _active_adapters: MutableMapping[int, None]

    def add_adapter(self, adapter: Any) -> bool: ...
    def activate_adapter(self, lora_id: int) -> bool: ...
    def remove_adapter(self, adapter_id: int) -> bool: ...
    def list_adapters(self) -> Mapping[int, Any]: ...


@slice_of("vllm.lora.model_manager:LRUCacheLoRAModelManager")
class AdapterMapping(Protocol):
    """What works out each token's adapter before a step."""

    _set_adapter_mapping: Callable[[Any], None]


@slice_of("vllm.lora.lora_model:LoRAModel")
class LoRAModel(Protocol):
    def from_lora_tensors(self, lora_model_id: int, tensors: Mapping[str, torch.Tensor], **options: Any) -> Any: ...


@slice_of("vllm.lora.peft_helper:PEFTHelper")
class PEFTHelper(Protocol):
    def from_dict(self, config_dict: Mapping[str, Any]) -> Any: ...


@slice_of("vllm.lora.punica_wrapper.punica_base:PunicaWrapperBase")
class TokenAdapters(Protocol):
    token_lora_indices: torch.Tensor
    """The slot of each token's adapter, [T]; -1 for none."""


@slice_of("vllm.lora.layers.base_linear:BaseLinearLayerWithLoRA")
class LoRALayer(Protocol):
    base_layer: torch.nn.Module
    lora_a_stacked: tuple[torch.Tensor, ...]
    lora_b_stacked: tuple[torch.Tensor, ...]
    punica_wrapper: TokenAdapters
    _get_quant_method: Callable[[], Any]

    def can_replace_layer(self, **arguments: Any) -> bool: ...
    def create_lora_weights(self, max_loras: int, lora_config: LoRAConfig, model_config: Any) -> None: ...
    def apply(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor: ...
