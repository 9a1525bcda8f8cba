"""The names inside vLLM of layers that keep a state; see `names.py`, where all others are."""

from __future__ import annotations

from typing import Any

from lorarl_trainer.engine.vllm.binding import Feature, Place, replaced, used


class CpuDeltaNets(Feature):
    """`patches/cpu_delta_nets.py`. vLLM's own take no fp32."""

    what = "gated delta nets on a CPU"
    follows = (
        "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn:QwenGatedDeltaNetAttention._output_projection",
        "vllm.model_executor.layers.mamba.ops.cpu.gdn_attention:_cpu_gdn_attention_nonspec",
        "vllm.v1.attention.backends.gdn_attn:GDNAttentionMetadataBuilder.build",
    )
    forward_cpu: Place = replaced(
        "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn:QwenGatedDeltaNetAttention.forward_cpu"
    )
    get_forward_context: Any = used("vllm.forward_context:get_forward_context")


class CpuStateSpaces(Feature):
    """`patches/cpu_state_spaces.py`. vLLM has kernels for GPUs alone."""

    what = "Mamba layers on a CPU"
    follows = (
        "vllm.model_executor.custom_op:PluggableLayer.__new__",
        "vllm.model_executor.layers.mamba.mamba_mixer2:MambaMixer2.conv_ssm_forward",
        "vllm.model_executor.layers.mamba.mamba_mixer2:MambaMixer2.forward",
        "vllm.v1.attention.backends.mamba_attn:BaseMambaAttentionMetadataBuilder._compute_common_metadata",
    )
    MambaMixer2: Any = used("vllm.model_executor.layers.mamba.mamba_mixer2:MambaMixer2")
    other_layers: Place = replaced("vllm.model_executor.custom_op:op_registry_oot")
    get_forward_context: Any = used("vllm.forward_context:get_forward_context")


_FLA = "vllm.third_party.flash_linear_attention.ops"


class GpuDeltaNets(Feature):
    """`patches/gpu_delta_nets.py`: the kernels of Triton among whose configurations a delta net's prompts search."""

    what = "delta nets without a search among kernels"
    price = "the first start searches for minutes, and prompts are rounded otherwise at each start"
    states: Any = used(f"{_FLA}.chunk_delta_h:chunk_gated_delta_rule_fwd_kernel_h_blockdim64")
    outputs: Any = used(f"{_FLA}.chunk_o:chunk_fwd_kernel_o")
    products: Any = used(f"{_FLA}.chunk_scaled_dot_kkt:chunk_scaled_dot_kkt_fwd_kernel")
    sums: Any = used(f"{_FLA}.cumsum:chunk_local_cumsum_scalar_kernel")
    norms: Any = used(f"{_FLA}.l2norm:l2norm_fwd_kernel")
    wide_norms: Any = used(f"{_FLA}.l2norm:l2norm_fwd_kernel1")
    inverses: Any = used(f"{_FLA}.solve_tril:merge_16x16_to_64x64_inverse_kernel")
    small_inverses: Any = used(f"{_FLA}.solve_tril:merge_16x16_to_32x32_inverse_kernel")
    tile_inverses: Any = used(f"{_FLA}.solve_tril:solve_tril_16x16_kernel")
    representations: Any = used(f"{_FLA}.wy_fast:recompute_w_u_fwd_kernel")
