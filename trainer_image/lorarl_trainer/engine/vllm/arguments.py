"""The arguments of vLLM's engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lorarl_api.v1alpha1 import served_rank
from lorarl_trainer.devices.base import Device, Host
from lorarl_trainer.engine.vllm import names
from lorarl_trainer.engine.vllm.config import EngineConfig
from lorarl_trainer.models.layer_kinds import computes, keeps_states
from lorarl_trainer.models.lfm2 import sizes_for_vllm
from lorarl_trainer.models.packed_weights import is_packed
from lorarl_trainer.planning.execution import WATERMARK, EnginePlan, capture_sizes

if TYPE_CHECKING:
    import vllm

FLASH_3_HEAD = 256
"""The widest head that flash attention 3 takes."""

_LOGITS_OF_SAMPLER = 3
"""Copies of a step's logits in float32 that vLLM's own sampler makes: them, their log-softmax, and a temporary."""


def engine_arguments(
    device: Device, config: EngineConfig, hf_config: Any, seed: int, load_format: str
) -> vllm.EngineArgs:
    """Return the arguments of the engine of a job. vLLM must have been set up.

    Args:
        device: this process's.
        config: what the engine has to know about the job.
        hf_config: the base model's config.json.
        seed: vLLM's own.
        load_format: where the weights come from, as vLLM names it.
    """
    from vllm import EngineArgs

    from lorarl_trainer.engine.vllm.quantization import register
    from lorarl_trainer.engine.vllm.scheduler import RolloutScheduler
    from lorarl_trainer.engine.vllm.worker import RolloutWorker

    plan, states = config.plan, keeps_states(hf_config.get_text_config())
    return EngineArgs(
        model=str(config.model_path),
        load_format=load_format,
        skip_tokenizer_init=True,
        # A model that also takes images, and is trained on text.
        language_model_only=hasattr(hf_config, "vision_config"),
        dtype=config.dtype,
        quantization=register(config.quantization) if config.quantization else None,
        max_model_len=config.max_prompt_tokens + config.max_response_tokens,
        max_num_seqs=plan.at_once,
        max_num_batched_tokens=plan.step_tokens,
        enable_lora=True,
        max_lora_rank=served_rank(config.rank),
        # By default the embedding and the output layer get an adapter too.
        lora_target_modules=list(config.target_modules),
        max_loras=plan.adapters,
        max_cpu_loras=plan.adapters,
        # Windows are computed, but keys and values stay for whole sequences: our scheduler counts their blocks once.
        disable_hybrid_kv_cache_manager=not states,
        mamba_ssm_cache_dtype="float32",  # as the trainer has it
        logprobs_mode="processed_logprobs",
        # A state is of all tokens before: a prefix that others share would need one at each block's end.
        enable_prefix_caching=not states,
        watermark=WATERMARK,
        scheduler_cls=RolloutScheduler,
        worker_cls=f"{RolloutWorker.__module__}.{RolloutWorker.__name__}",
        disable_log_stats=True,
        tensor_parallel_size=config.ranks,
        distributed_executor_backend="external_launcher",
        seed=seed,
        enable_sleep_mode=bool(plan.offload),
        kv_cache_memory_bytes=plan.kv_cache_bytes - _own_logits(config, hf_config),
        hf_overrides=_overrides(hf_config),
        **device_arguments(device, plan),
        **kernels_of_triton(hf_config.get_text_config(), on_gpu=names.on_gpu()),
    )


def _overrides(hf_config: Any) -> dict[str, Any]:
    """Return what vLLM takes in the place of what config.json says."""
    found: dict[str, Any] = {**sizes_for_vllm(hf_config)}
    if is_packed(hf_config):
        found["quantization_config"] = None  # it uses the trainer's tensors, which has read the packed weights
    if names.on_gpu():
        # Logits in float32, as the trainer computes them. bf16 would round the log-probabilities of a sure model by
        # some hundredths.
        found["head_dtype"] = "float32"
    return found


def _own_logits(config: EngineConfig, hf_config: Any) -> int:
    """Return the bytes of the copies of a step's logits that vLLM's own sampler makes, which no plan counts."""
    if not names.on_gpu() or names.Sampling.is_on:
        return 0
    vocabulary: int = hf_config.get_text_config().vocab_size
    return _LOGITS_OF_SAMPLER * 4 * config.plan.at_once * vocabulary


def device_arguments(device: Device, plan: EnginePlan) -> dict[str, Any]:
    """Return the arguments that depend on the device."""
    gpu = device.memory()
    if isinstance(gpu, Host):
        return {"enforce_eager": True, "block_size": plan.kv_block_tokens}
    return {
        # vLLM gets the size of its KV cache elsewhere. It only refuses to start unless this share of the GPU is free,
        # and the plan has looked at what is free already.
        "gpu_memory_utilization": 0.01,
        "compilation_config": {
            # torch.compile takes 25 s of a start, and vLLM already has kernels for what it would fuse.
            "mode": 0,
            # Prompts come in batches too large for a graph, so only decoding gains from one.
            "cudagraph_mode": "FULL_DECODE_ONLY",
            "cudagraph_capture_sizes": capture_sizes(plan.at_once),
        },
    }


def kernels_of_triton(text: Any, *, on_gpu: bool) -> dict[str, Any]:
    """Return the arguments for a language model on whose layers vLLM would use kernels of CUTLASS's DSL.

    On Hopper it would do so for prompts in a delta net, and for heads wider than flash attention 3 takes. These kernels
    are compiled at each start. Triton's are kept between starts, and are also there without the DSL.
    """
    if not on_gpu:
        return {}
    widest = max(getattr(text, name, None) or 0 for name in ("head_dim", "global_head_dim"))
    attention = {"attention_backend": "TRITON_ATTN"} if widest > FLASH_3_HEAD else {}
    return attention | ({"gdn_prefill_backend": "triton"} if computes(text, "gated_delta") else {})
