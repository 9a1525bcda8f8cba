"""What Megatron's configuration says about a layer that `fused_layer` computes: the fields, one by one.

The record is of megatron-core 0.19.2 and megatron-bridge 0.6.2. A field that it does not know may change a layer's
function, so a configuration with such a field is not plain: Megatron's own code then runs the layer.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from torch.nn.functional import silu

_REQUIRED: dict[str, Any] = {
    # norms, residuals and the MLP
    "normalization": "RMSNorm",
    "layernorm_zero_centered_gamma": False,
    "fused_residual_rmsnorm": False,
    "fp32_residual_connection": False,
    "apply_residual_connection_post_layernorm": False,
    "add_bias_linear": False,
    "gated_linear_unit": True,
    "activation_func": silu,
    "activation_func_clamp_value": None,
    "use_te_activation_func": False,
    "glu_linear_offset": 0.0,
    "hidden_dropout": 0.0,
    "mlp_chunks_for_training": 1,
    "use_grouped_gemm_for_dense_mlp": False,
    "dense_grouped_gemm": False,
    "use_mup": False,
    # attention
    "attention_dropout": 0.0,
    "attention_output_gate": False,
    "apply_query_key_layer_scaling": False,
    "experimental_attention_variant": None,
    "linear_attention_freq": None,
    "log_max_attention_logit": False,
    "multi_latent_attention": False,
    "qk_clip": False,
    "qk_l2_norm": False,
    "softmax_type": "vanilla",
    "window_attn_skip_freq": None,
    "window_size": None,
    # positions
    "mrope_section": None,
    "no_rope_freq": None,
    "position_embedding_type": "rope",
    "rotary_interleaved": False,
    "rotary_percent": 1.0,
    "rotary_scaling_factor": None,
    # layers of other kinds
    "heterogeneous_block_specs": False,
    "is_hybrid_model": False,
    "moe_layer_freq": 1,
    "mtp_num_layers": None,
    "restore_modelopt_state": False,
    # numbers in other formats, and other ways to compute
    "batch_invariant_mode": False,
    "deterministic_mode": False,
    "flash_decode": False,
    "fp4": None,
    "fp8": None,
    "quant_recipe": None,
    "test_mode": False,
    "use_kitchen": False,
    "use_transformer_engine_full_layer_spec": False,
    "use_transformer_engine_op_fuser": False,
    # a layer of one rank, or split by tensor parallelism alone, with its activations there
    "context_parallel_size": 1,
    "cpu_offloading": False,
    "fine_grained_activation_offloading": False,
    "gtp_weight_remat_size": 1,
    "hybrid_context_parallel": False,
    "pipeline_model_parallel_size": 1,
    "tensor_parallel_num_weight_shards": None,
}
"""The values that `fused_layer` computes."""

_OF_EXPERTS: dict[str, Any] = {
    "moe_apply_probs_on_input": False,
    "moe_aux_loss_coeff": 0.0,
    "moe_expert_capacity_factor": None,
    "moe_input_jitter_eps": None,
    "moe_latent_size": None,
    "moe_router_dtype": None,
    "moe_router_enable_expert_bias": False,
    "moe_router_force_load_balancing": False,
    "moe_router_load_balancing_type": "none",
    "moe_router_num_groups": None,
    "moe_router_score_function": "softmax",
    "moe_router_topk_scaling_factor": None,
    "moe_shared_expert_intermediate_size": None,
    "moe_z_loss_coeff": None,
}
"""Those of a mixture of experts."""

_FOLLOWED = """
    add_qkv_bias attention_backend expert_model_parallel_size ffn_hidden_size hidden_size kv_channels layernorm_epsilon
    num_attention_heads num_layers num_moe_experts num_query_groups qk_layernorm rope_scaling rope_scaling_factor
    rotary_base seq_len_interpolation_factor sequence_parallel softmax_scale tensor_model_parallel_size
"""
"""Followed: sizes, positions' base and scaling, how ranks share a layer, and what the layer's own modules show."""
_OUTSIDE = """
    calculate_per_token_loss clone_scatter_output_in_embedding config_logger_dir cross_entropy_fusion_impl
    cross_entropy_loss_fusion fp16_lm_cross_entropy hf_model_id hf_model_revision make_vocab_size_divisible_by
    parallel_output scatter_embedding_sequence_parallel seq_length share_embeddings_and_output_weights should_pad_vocab
    transformer_impl transformer_layer_spec vocab_size
"""
"""Outside of the layers: embeddings, logits, losses, names."""
_PARAMETERS = """
    autocast_dtype bf16 disable_bf16_reduced_precision_matmul embedding_init_method embedding_init_method_std
    enable_autocast first_last_layers_bf16 fp16 init_method init_method_std init_model_with_meta_device
    num_layers_at_end_in_bf16 num_layers_at_start_in_bf16 output_layer_init_method params_dtype perform_initialization
    use_cpu_initialization
"""
"""Precision and initialisation of parameters."""
_IMPLEMENTATION = """
    activation_func_fp8_input_store apply_rope_fusion attention_softmax_in_fp32 bias_activation_fusion
    bias_dropout_fusion flash_attention_version fused_single_qkv_rope gradient_accumulation_fusion
    masked_softmax_fusion memory_efficient_layer_norm persist_layer_norm use_arbitrary_attention_mask
    use_fused_weighted_squared_relu use_kitchen_attention use_mamba_mem_eff_path use_te_rng_tracker
"""
"""How Megatron's own layers compute the same."""
_RESOURCES = """
    _cpu_offloading_context _pg_collection account_for_embedding_in_pipeline_split
    account_for_loss_in_pipeline_split activation_offload_fraction barrier_with_L1_time batch_p2p_comm batch_p2p_sync
    cp_comm_type deallocate_pipeline_outputs defer_embedding_wgrad_compute delay_offload_until_cuda_graph
    delay_wgrad_compute delta_offload_bytes_across_pp_ranks disable_parameter_transpose_cache
    distribute_saved_activations enable_cuda_graph ep_overlap_early_attn_memory_release
    experimental_attention_variant_loss_scale_func external_cuda_graph finalize_model_grads_func grad_scale_func
    grad_sync_func hetereogenous_dist_checkpoint hierarchical_context_parallel_sizes high_priority_a2a_comm_stream
    max_seqlen_per_dp_cp_rank microbatch_group_size_per_vp_stage min_offloaded_tensor_size mlp_chunks_for_prefill
    nccl_all_reduce_for_prefill no_sync_func num_layers_in_first_pipeline_stage num_layers_in_last_pipeline_stage
    num_microbatches_with_partial_activation_checkpoints offload_modules param_sync_func symmetric_ar_type timers
    tp_only_amax_red use_grouped_gemm_for_shared_expert use_inference_optimized_layers use_ring_exchange_p2p
    variable_seq_lengths virtual_pipeline_model_parallel_size wgrad_deferral_limit
"""
"""Memory, communication and schedules."""
_ANY = frozenset(" ".join([_FOLLOWED, _OUTSIDE, _PARAMETERS, _IMPLEMENTATION, _RESOURCES]).split())
"""Fields whose value is followed, or does not change what a layer computes."""

_SWITCHED_OFF = (
    # details of what a field of _REQUIRED switches off
    *("cpu_offloading_", "dsa_", "expert_", "fp4_", "fp8_", "linear_", "mamba_", "moe_", "mtp_", "mup_", "qk_clip_"),
    *("fine_grained_offloading_", "kitchen_", "pipeline_", "yarn_"),
    # how ranks communicate, inference, and what the backward pass computes again
    *("cuda_graph_", "inference_", "overlap_", "recompute_", "tp_comm_"),
)
"""Beginnings of names of fields that do not matter for a plain layer."""


def not_plain(config: Any) -> list[str]:
    """Return what a Megatron configuration has that `fused_layer` does not compute; nothing for a plain one."""
    found = [name for name, value in _REQUIRED.items() if getattr(config, name) != value]
    if config.num_moe_experts:
        found += [name for name, value in _OF_EXPERTS.items() if getattr(config, name) != value]
    unknown = {field.name for field in dataclasses.fields(config)} - _REQUIRED.keys() - _ANY
    return found + sorted(name for name in unknown if not name.startswith(_SWITCHED_OFF))
