"""Every name inside vLLM that lorarl uses, apart from what it documents: `LLMEngine`, `EngineArgs`, `SamplingParams`.

vLLM promises nothing about them, so they have one home: module-level names here, by feature, and attributes of objects
in `slices.py`, `model_slices.py` and `gpu_slices.py`. The engine starts with one version of vLLM. A test records
signatures, and a hash of code that lorarl replaces or repeats (docs/upgrading.md). This module imports nothing of vLLM.
A feature with a price only makes a run faster: without a name of it, vLLM's own code runs. The others are required.
"""

from __future__ import annotations

from typing import Any

from lorarl_trainer.engine.vllm import gpu_slices, model_slices, slices
from lorarl_trainer.engine.vllm.binding import Feature, Place, replaced, used
from lorarl_trainer.engine.vllm.names_of_states import CpuDeltaNets as CpuDeltaNets
from lorarl_trainer.engine.vllm.names_of_states import CpuStateSpaces as CpuStateSpaces
from lorarl_trainer.engine.vllm.names_of_states import GpuDeltaNets as GpuDeltaNets


class Build(Feature):
    """What vLLM was built for."""

    what = "the choice between GPU and CPU"
    current_platform: slices.Platform = used("vllm.platforms:current_platform")


class Requests(Feature):
    """`engine.py`: requests go straight to vLLM's core. Its front end would process every token of every request."""

    what = "generation"
    follows = (
        "vllm.engine.arg_utils:EngineArgs.get_batch_defaults",  # by planning/usual.py
        "vllm.v1.engine.core:EngineCore.add_request",
        "vllm.v1.engine.core:EngineCore.step",
        "vllm.v1.engine.core:EngineCore.step_with_batch_queue",
        "vllm.v1.engine.core_client:InprocClient.get_output",
    )
    Request: Any = used("vllm.v1.request:Request")


class Scheduling(Feature):
    """`scheduler.py`, through vLLM's own door, `scheduler_cls`."""

    what = "the rollout scheduler"
    follows = (
        "vllm.v1.core.sched.async_scheduler:AsyncScheduler._update_after_schedule",
        "vllm.v1.core.sched.async_scheduler:AsyncScheduler._update_request_with_output",
        "vllm.v1.core.sched.output:NewRequestData.from_request",
        "vllm.v1.core.sched.scheduler:Scheduler.add_request",
        "vllm.v1.core.sched.scheduler:Scheduler.finish_requests",
        "vllm.v1.core.sched.scheduler:Scheduler.schedule",
        "vllm.v1.core.sched.scheduler:Scheduler.update_from_output",
        "vllm.v1.core.sched.scheduler:Scheduler._preempt_request",
        "vllm.v1.core.single_type_kv_cache_manager:SingleTypeKVCacheManager.allocate_new_blocks",
        "vllm.v1.engine:FinishReason",
        "vllm.v1.worker.gpu.model_runner:GPUModelRunner.add_requests",
        "vllm.v1.worker.gpu.model_runner:GPUModelRunner.finish_requests",
        "vllm.v1.worker.gpu.model_runner:GPUModelRunner.update_requests",
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._update_states",
    )
    MambaSpec: Any = used("vllm.v1.kv_cache_interface:MambaSpec")
    AsyncScheduler: Any = used("vllm.v1.core.sched.async_scheduler:AsyncScheduler")
    CachedRequestData: Any = used("vllm.v1.core.sched.output:CachedRequestData")
    NewRequestData: Any = used("vllm.v1.core.sched.output:NewRequestData")
    SchedulerOutput: Any = used("vllm.v1.core.sched.output:SchedulerOutput")
    EngineCoreOutput: Any = used("vllm.v1.engine:EngineCoreOutput")
    EngineCoreOutputs: Any = used("vllm.v1.engine:EngineCoreOutputs")
    FinishReason: Any = used("vllm.v1.engine:FinishReason")
    LogprobsLists: Any = used("vllm.v1.outputs:LogprobsLists")


class AdapterSlots(Feature):
    """`adapter_slots.py`: vLLM has no public way to load an adapter from tensors, so this follows its own loader."""

    what = "adapter sync"
    follows = (
        "vllm.lora.model_manager:LRUCacheLoRAModelManager.activate_adapter",
        "vllm.lora.model_manager:LoRAModelManager._deactivate_adapter",
        "vllm.lora.model_manager:LoRAModelManager.activate_adapter",
        "vllm.lora.worker_manager:LRUCacheWorkerLoRAManager._apply_adapters",
        "vllm.lora.worker_manager:LRUCacheWorkerLoRAManager.add_adapter",
        "vllm.lora.worker_manager:WorkerLoRAManager._load_adapter",
    )
    LoRAModel: Any = used("vllm.lora.lora_model:LoRAModel")
    LoRARequest: Any = used("vllm.lora.request:LoRARequest")
    PEFTHelper: Any = used("vllm.lora.peft_helper:PEFTHelper")


class AdapterLayers(Feature):
    """`patches/linear.py` and `patches/many_adapters.py`."""

    what = "the layers with adapters"
    price = "vLLM's kernels for many adapters compute the adapter, which takes longer in every step"
    follows = (
        "vllm.lora.layers.base_linear:BaseLinearLayerWithLoRA.apply",
        "vllm.lora.layers.base_linear:BaseLinearLayerWithLoRA.create_lora_weights",
        "vllm.lora.layers.column_parallel_linear:MergedColumnParallelLinearWithLoRA.create_lora_weights",
        "vllm.lora.layers.column_parallel_linear:MergedColumnParallelLinearVariableSliceWithLoRA.can_replace_layer",
        "vllm.lora.utils:from_layer",
    )
    reaches_into = (slices.LoRALayer,)
    all_lora_classes: Place = replaced("vllm.lora.utils:_all_lora_classes")
    ColumnParallelLinearWithLoRA: Any = used("vllm.lora.layers:ColumnParallelLinearWithLoRA")
    MergedColumnParallelLinearWithLoRA: Any = used("vllm.lora.layers:MergedColumnParallelLinearWithLoRA")
    MergedQKVParallelLinearWithLoRA: Any = used("vllm.lora.layers:MergedQKVParallelLinearWithLoRA")
    QKVParallelLinearWithLoRA: Any = used("vllm.lora.layers:QKVParallelLinearWithLoRA")
    ReplicatedLinearWithLoRA: Any = used("vllm.lora.layers:ReplicatedLinearWithLoRA")
    RowParallelLinearWithLoRA: Any = used("vllm.lora.layers:RowParallelLinearWithLoRA")
    UnquantizedLinearMethod: Any = used("vllm.model_executor.layers.linear:UnquantizedLinearMethod")


class AdapterLookup(Feature):
    """`patches/adapters.py`, where all layers with an adapter are lorarl's."""

    what = "the step without a lookup of each token's adapter"
    price = "vLLM looks each token's adapter up before every step, which nothing reads"
    follows = ("vllm.lora.model_manager:LoRAModelManager._set_adapter_mapping",)
    reaches_into = (slices.AdapterMapping,)


class Experts(Feature):
    """`patches/expert_buffers.py`, for mixtures of experts."""

    what = "adapters on experts"
    follows = (
        "vllm.lora.layers.fused_moe:FusedMoEWithLoRA.__init__",
        "vllm.lora.layers.fused_moe:FusedMoEWithLoRA.create_lora_weights",
        "vllm.lora.layers.fused_moe:FusedMoEWithLoRA.set_lora",
        "vllm.lora.lora_weights:PackedLoRALayerWeights.pack_moe",
        "vllm.lora.model_manager:LoRAModelManager._create_lora_modules",
        "vllm.lora.model_manager:LoRAModelManager._create_merged_loras_inplace",
        "vllm.lora.model_manager:LoRAModelManager.create_dummy_lora",
    )
    BaseLayerWithLoRA: Any = used("vllm.lora.layers:BaseLayerWithLoRA")
    FusedMoEWithLoRA: Any = used("vllm.lora.layers:FusedMoEWithLoRA")


class Routing(Feature):
    """`routing.py`, for mixtures of experts."""

    what = "a record of which experts tokens are sent to"
    follows = ("vllm.model_executor.layers.fused_moe.router.base_router:BaseRouter.select_experts",)
    MoERunner: Any = used("vllm.model_executor.layers.fused_moe.layer:MoERunner")
    get_forward_context: Any = used("vllm.forward_context:get_forward_context")


class CpuExperts(Feature):
    """`patches/cpu_experts.py`."""

    what = "a mixture of experts on a CPU"
    follows = (
        "vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method:UnquantizedFusedMoEMethod.apply_monolithic",
        "vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method:UnquantizedFusedMoEMethod"
        ".process_weights_after_loading",
    )
    CPUFusedMOE: Place = replaced("vllm.model_executor.layers.fused_moe.cpu_fused_moe:CPUFusedMOE")


class GpuExperts(Feature):
    """`patches/gpu_experts.py`."""

    what = "a mixture of experts on a GPU"
    follows = (
        "vllm.lora.layers.fused_moe:FusedMoEWithLoRA._create_lora_a_weights",
        "vllm.lora.layers.fused_moe:FusedMoEWithLoRA._create_lora_b_weights",
        "vllm.model_executor.layers.fused_moe.routed_experts:RoutedExperts._replace_quant_method",
        "vllm.model_executor.layers.fused_moe.routed_experts:RoutedExperts.forward_modular",
        "vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method:UnquantizedFusedMoEMethod._setup_kernel",
    )
    FusedMoEMethodBase: Any = used("vllm.model_executor.layers.fused_moe.fused_moe_method_base:FusedMoEMethodBase")
    UnquantizedFusedMoEMethod: Any = used("vllm.model_executor.layers.fused_moe:UnquantizedFusedMoEMethod")


class AdapterModels(Feature):
    """`patches/models.py`, for some models."""

    what = "models that vLLM serves without adapters, or with Transformers' modules"
    SupportsLoRA: Any = used("vllm.model_executor.models.interfaces:SupportsLoRA")
    decorate: Place = replaced("vllm.model_executor.models.transformers.base:Base._decorate_for_torch_compile")


class AdapterGraphs(Feature):
    """`patches/adapters.py`, on a GPU."""

    what = "the CUDA graphs for one adapter"
    price = "vLLM also captures graphs without an adapter, which take a start's time and memory and are never used"
    follows = (
        "vllm.v1.worker.gpu.lora_utils:LoraState.get_activate_loras",
        "vllm.v1.worker.gpu.lora_utils:LoraState.make_lora_inputs",
        "vllm.v1.worker.gpu.lora_utils:get_num_active_loras_for_dispatch",
    )
    reaches_into = (gpu_slices.LoraState,)
    get_lora_capture_cases: Place = replaced("vllm.v1.worker.gpu.model_runner:get_lora_capture_cases")


class Sampling(Feature):
    """`patches/sampler.py`, on a GPU. What a truncated distribution leaves is counted there alone."""

    what = "the rollout sampler"
    price = "a decode step of 512 sequences takes 0.7 ms longer, and copies of the logits take room from the KV cache"
    follows = (
        "vllm.model_executor.layers.logits_processor:LogitsProcessor._gather_logits",
        "vllm.model_executor.layers.logits_processor:LogitsProcessor._get_logits",
        "vllm.model_executor.layers.logits_processor:LogitsProcessor.forward",
        "vllm.model_executor.layers.vocab_parallel_embedding:VocabParallelEmbedding._get_indices",
        "vllm.v1.worker.gpu.model_runner:GPUModelRunner._dummy_sampler_run",
        "vllm.v1.worker.gpu.model_runner:GPUModelRunner.sample",
        "vllm.v1.worker.gpu.sample.sampler:Sampler.returns_logprobs",
        "vllm.v1.worker.gpu.sample.states:SamplingStates.add_request",
    )
    reaches_into = (
        gpu_slices.GroupCoordinator,
        gpu_slices.InputBatch,
        gpu_slices.LogitsProcessor,
        gpu_slices.RequestState,
        gpu_slices.Sampler,
        gpu_slices.SamplingStates,
        gpu_slices.UvaBackedTensor,
    )
    sampler_of_runner: Place = replaced("vllm.v1.worker.gpu.model_runner:Sampler")
    LogitsProcessor: Any = used("vllm.model_executor.layers.logits_processor:LogitsProcessor")
    LogprobsTensors: Any = used("vllm.v1.outputs:LogprobsTensors")
    Sampler: Any = used("vllm.v1.worker.gpu.sample.sampler:Sampler")
    SamplerOutput: Any = used("vllm.v1.worker.gpu.sample.output:SamplerOutput")
    get_tp_group: Any = used("vllm.distributed.parallel_state:get_tp_group")
    get_num_sampled_and_rejected: Any = used("vllm.v1.worker.gpu.input_batch:get_num_sampled_and_rejected")


class Attention(Feature):
    """`patches/attention.py`, on a GPU. Layers of different windows are distinguished there alone."""

    what = "the decoding attention"
    price = "attention to many short sequences takes up to 1.6 times as long"
    follows = (
        "vllm.v1.attention.backends.flash_attn:FlashAttentionImpl.forward",
        "vllm.v1.attention.backends.flash_attn:FlashAttentionMetadataBuilder.build",  # its window is a group's
        "vllm.v1.worker.gpu.model_states.default:DefaultModelState.prepare_attn",
    )
    reaches_into = (gpu_slices.FlashAttentionImpl, gpu_slices.FlashAttentionMetadata)
    FlashAttentionImpl: Any = used("vllm.v1.attention.backends.flash_attn:FlashAttentionImpl")
    get_impl_cls: Place = replaced("vllm.v1.attention.backends.flash_attn:FlashAttentionBackend.get_impl_cls")


class CpuSampling(Feature):
    """`patches/cpu_sampler.py`. vLLM's own cannot take a draw back, nor continue where a request was stopped."""

    what = "the rollout sampler"
    follows = (
        "vllm.v1.sample.sampler:Sampler.forward",
        "vllm.v1.sample.sampler:Sampler.gather_logprobs",
        "vllm.v1.sample.sampler:Sampler.sample",
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._bookkeeping_sync",  # it takes draws back
    )
    forward_cpu: Place = replaced("vllm.v1.sample.ops.topk_topp_sampler:TopKTopPSampler.forward_cpu")
    batch_of_runner: Place = replaced("vllm.v1.worker.gpu_model_runner:InputBatch")
    sampler_of_runner: Place = replaced("vllm.v1.worker.gpu_model_runner:Sampler")
    LogprobsTensors: Any = used("vllm.v1.outputs:LogprobsTensors")
    apply_top_k_top_p: Any = used("vllm.v1.sample.ops.topk_topp_sampler:apply_top_k_top_p")


class CpuSinks(Feature):
    """`patches/cpu_sinks.py`. vLLM's own take no fp32."""

    what = "sinks of attention on a CPU"
    follows = ("vllm.v1.attention.backends.cpu_attn:CPUAttentionBackendImpl.forward",)
    CPUAttentionBackendImpl: Any = used("vllm.v1.attention.backends.cpu_attn:CPUAttentionBackendImpl")
    get_impl_cls: Place = replaced("vllm.v1.attention.backends.cpu_attn:CPUAttentionBackend.get_impl_cls")


class CpuRotary(Feature):
    """`patches/cpu_rotary.py`. vLLM's kernel is wrong for queries of three dimensions."""

    what = "positions of separate heads on a CPU"
    follows = ("vllm.model_executor.layers.rotary_embedding.base:RotaryEmbedding.forward_native",)
    forward_cpu: Place = replaced("vllm.model_executor.layers.rotary_embedding.base:RotaryEmbedding.forward_cpu")


class SharedKeys(Feature):
    """`patches/shared_keys.py`, on a CPU."""

    what = "layers that take the keys of others"
    follows = ("vllm.v1.worker.utils:add_kv_sharing_layers_to_kv_cache_groups",)
    add_layers: Place = replaced("vllm.v1.worker.gpu_model_runner:add_kv_sharing_layers_to_kv_cache_groups")


class GpuSharedKeys(Feature):
    """`patches/shared_keys.py`, on a GPU."""

    what = "layers that take the keys of others"
    add_layers: Place = replaced("vllm.v1.worker.gpu.attn_utils:add_kv_sharing_layers_to_kv_cache_groups")


class Models(Feature):
    """`patches/models.py`."""

    what = "the choice of a model's class"
    ModelRegistry: model_slices.ModelRegistry = used("vllm.model_executor.models.registry:ModelRegistry")
    rotary_embeddings: Place = replaced("vllm.model_executor.layers.rotary_embedding:_ROPE_DICT")


class LeanStart(Feature):
    """`patches/start.py`, on a GPU."""

    what = "the start without unused kernels"
    price = "it takes from 15 s to some minutes longer"
    for_sampler_warmup: Place = replaced("vllm.sampling_params:SamplingParams.for_sampler_warmup")
    kernel_warmup: Place = replaced("vllm.v1.worker.gpu_worker:kernel_warmup")


class GpuWorker(Feature):
    """`worker.py` on a GPU, through vLLM's own door, `worker_cls`."""

    what = "the engine's worker"
    Worker: Any = used("vllm.v1.worker.gpu_worker:Worker")


class CpuWorker(Feature):
    """`worker.py` on a CPU, through vLLM's own door, `worker_cls`, and `patches/cpu_linear.py`."""

    what = "the engine's worker"
    follows = ("vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm",)
    supports_onednn: Place = replaced("vllm._custom_ops:_supports_onednn")
    Worker: Any = used("vllm.v1.worker.cpu_worker:CPUWorker")


class BaseModel(Feature):
    """`shared_base.py`, and `quantization.py` for a quantized base, through vLLM's own doors: `register_...`."""

    what = "one base model for trainer and engine"
    follows = (
        "vllm.model_executor.model_loader.base_loader:BaseModelLoader.load_model",
        "vllm.model_executor.model_loader.utils:process_weights_after_loading",
    )
    LinearBase: Any = used("vllm.model_executor.layers.linear:LinearBase")
    LinearMethodBase: Any = used("vllm.model_executor.layers.linear:LinearMethodBase")
    QuantizationConfig: Any = used("vllm.model_executor.layers.quantization.base_config:QuantizationConfig")
    BaseModelLoader: Any = used("vllm.model_executor.model_loader.base_loader:BaseModelLoader")
    register_model_loader: Any = used("vllm.model_executor.model_loader:register_model_loader")
    register_quantization_config: Any = used("vllm.model_executor.layers.quantization:register_quantization_config")


class SleepingMemory(Feature):
    """`memory.py`, on a GPU where the job gives memory up."""

    what = "rollout.offload"
    follows = (
        "vllm.device_allocator.cumem:CuMemAllocator.sleep",
        "vllm.device_allocator.cumem:CuMemAllocator.wake_up",
        "vllm.v1.worker.gpu_worker:Worker.wake_up",
    )
    CuMemAllocator: Any = used("vllm.device_allocator.cumem:CuMemAllocator")
    create_and_map: Any = used("vllm.device_allocator.cumem:create_and_map")
    libcudart: Any = used("vllm.device_allocator.cumem:libcudart")
    unmap_and_release: Any = used("vllm.device_allocator.cumem:unmap_and_release")


ALWAYS = (Build, Requests, Scheduling, AdapterSlots, AdapterLayers, AdapterLookup, Models, BaseModel)
ON_GPU = (AdapterGraphs, Sampling, Attention, LeanStart, GpuWorker)
ON_CPU = (CpuWorker, CpuSampling)
FOR_SOME_MODELS = (CpuDeltaNets, CpuStateSpaces, GpuDeltaNets, CpuSinks, CpuRotary, SharedKeys, GpuSharedKeys)
FOR_SOME_JOBS = (Experts, GpuExperts, CpuExperts, Routing, AdapterModels, SleepingMemory)
FEATURES = (*ALWAYS, *ON_GPU, *ON_CPU, *FOR_SOME_MODELS, *FOR_SOME_JOBS)


def on_gpu() -> bool:
    """Whether vLLM is built for CUDA. No other code of the engine asks which device vLLM has."""
    return Build.current_platform.is_cuda()
