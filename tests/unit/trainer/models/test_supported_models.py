"""Which models are taken and which are refused, judged by config.json alone. Every refusal is here."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from lorarl_trainer.devices.base import Gpu
from lorarl_trainer.errors import InputError
from lorarl_trainer.models.families import FAMILIES, BackendName
from lorarl_trainer.models.fsdp_families import FSDP_FAMILIES
from lorarl_trainer.models.model_sizes import shape_of, sizes_of
from lorarl_trainer.models.refused_families import REFUSED
from lorarl_trainer.models.supported_models import require_supported
from lorarl_trainer.planning.adapter_size import AdapterSize
from lorarl_trainer.planning.backend_choice import backend_of
from lorarl_trainer.planning.execution import sequences_held
from lorarl_trainer.planning.verdict import judge
from unit.trainer.planning.jobs import gpu_job

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

PLAIN_ROPE = {"rope_parameters": {"rope_type": "default"}}
OWN_ROPE = {
    "gpt_oss": {
        "rope_parameters": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0}
        | {"original_max_position_embeddings": 4096}
    },
    "granitemoehybrid": PLAIN_ROPE | {"layer_types": ["attention"], "num_local_experts": 0},
}
"""Of families that are taken with no other kind of positions, or of layers."""
SIZES = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 64}


def of(family: str, **fields: Any) -> dict[str, Any]:
    """A config.json of a family."""
    known = FAMILIES.get(family)
    return {"model_type": family, "architectures": [known.architecture if known else "AnyForCausalLM"], **fields}


# As published: Qwen2.5-7B-Instruct, Qwen3-8B, Llama-3.2-1B, Mistral-7B v0.3, v0.1; and as Transformers 5 writes them.
KNOWN: tuple[dict[str, Any], ...] = (
    of("qwen2", use_sliding_window=False, sliding_window=131072, rope_theta=1e6, max_position_embeddings=32768),
    of("qwen3", attention_bias=False, use_sliding_window=False, sliding_window=None, rope_scaling=None),
    of("llama", attention_bias=False, mlp_bias=False, rope_scaling=LLAMA3),
    of("llama", rope_parameters={**LLAMA3, "rope_theta": 5e5}),
    of("llama", rope_scaling={"type": "linear", "factor": 2.0}),
    of("llama", max_position_embeddings=512),
    of("llama", max_position_embeddings=256, rope_scaling={"type": "linear", "factor": 2.0}),
    of("llama", rope_parameters={"rope_type": "default", "partial_rotary_factor": 1.0}),
    of("qwen2", rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
    of("qwen2", use_sliding_window=True, sliding_window=512),
    of("qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=28, num_hidden_layers=28),
    of("qwen2", use_sliding_window=True, sliding_window=4, layer_types=["full_attention"] * 2),
    of("mistral", sliding_window=None),
    of("mistral", sliding_window=4096),
    of("mistral"),
)
LEFT_OUT: tuple[tuple[dict[str, Any], str], ...] = (
    (of("qwen3", attention_bias=True), "attention_bias: true"),
    (of("llama", mlp_bias=True), "mlp_bias: true"),
    (of("llama", hidden_act="gelu"), "hidden_act gelu, expected silu"),
    (of("llama", partial_rotary_factor=0.5), "partial_rotary_factor 0.5, expected 1"),
    (
        of("llama", rope_parameters={"rope_type": "default", "partial_rotary_factor": 0.25}),
        "partial_rotary_factor 0.25, expected 1",
    ),
    (of("qwen2", num_nextn_predict_layers=1), "num_nextn_predict_layers 1: layers that predict further tokens"),
    (
        of("qwen2", use_sliding_window=True, sliding_window=511),
        "a window of at least the job's longest sequence, 512 tokens",
    ),
    (
        of("qwen3", use_sliding_window=True, sliding_window=511, layer_types=["sliding_attention", "full_attention"]),
        "a sliding window of 511 tokens",
    ),
    (
        of("mistral", sliding_window=511),
        "Lower spec.rollout.maxPromptTokens and maxResponseTokens to 511 together, or choose another model.",
    ),
    (of("qwen2", rope_scaling={"type": "yarn", "factor": 4.0}), "rope_type yarn"),
    (of("mistral", rope_parameters={"rope_type": "yarn", "factor": 4.0}), "rope_type yarn"),
    # Transformers takes rope_scaling where a config.json has both.
    (
        of("qwen2", rope_parameters={"rope_type": "default"}, rope_scaling={"rope_type": "yarn"}),
        "rope_type yarn",
    ),
    (of("qwen3", quantization_config={"quant_method": "fp8"}), "weights quantized by fp8"),
    (of("qwen2", quantization_config={"quant_method": "bitsandbytes"}), "Name the model that was quantized."),
    (of("qwen3", rope_scaling={"rope_type": "linear", "factor": 2.0}), "rope_type linear"),
    (of("llama", rope_parameters={"rope_type": "dynamic", "factor": 2.0}), "rope_type dynamic"),
    (
        of("llama", rope_scaling={**LLAMA3, "original_max_position_embeddings": 4096}),
        "original_max_position_embeddings 4096",
    ),
    (
        {"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]},
        "architectures ['LlamaForSequenceClassification'], expected [LlamaForCausalLM]",
    ),
    ({"model_type": "llama"}, "architectures []"),
    (of("llama", is_encoder_decoder=True), "is_encoder_decoder: true, expected a decoder"),
)
NOT_LANGUAGE_MODELS = (
    ("qwen2_5_vl", {"vision_config": {"depth": 2}, "text_config": {"num_attention_heads": 2}}, "vision_config"),
    ("llava", {"text_config": {"model_type": "llama"}}, "text_config"),
    ("gemma3", {"vision_config": {"num_hidden_layers": 2}, "audio_config": {"d_model": 2}}, "audio_config: a model of"),
    ("qwen2_audio", {"audio_config": {"d_model": 2}}, "audio_config"),
    ("any_next", {"layer_types": ["linear_attention", "full_attention"], "num_experts": 512}, "linear_attention"),
    ("any_hybrid", {"layer_types": ["linear_attention"]}, "linear_attention"),
    ("any_short", {"layer_types": ["conv", "full_attention"]}, "conv"),
    ("any_mamba", {"mamba_d_ssm": 1024, "mamba_d_state": 256}, "mamba_d_state, mamba_d_ssm"),
    ("mamba2", {"state_size": 128}, "state_size"),
    ("any_pattern", {"hybrid_override_pattern": "M-M*-"}, "hybrid_override_pattern"),
    ("any_latent", {"kv_lora_rank": 512, "n_routed_experts": 256}, "kv_lora_rank 512: latent attention"),
)


@pytest.mark.parametrize("config", KNOWN, ids=str)
def test_what_megatron_computes_is_taken(config: dict[str, Any]) -> None:
    require_supported(config, 512)


@pytest.mark.parametrize(("config", "message"), LEFT_OUT, ids=lambda value: value if isinstance(value, str) else "")
def test_what_it_would_leave_out_is_refused(config: dict[str, Any], message: str) -> None:
    assert message in refusal(config, "megatron")


@pytest.mark.parametrize(
    "config",
    [
        of("mistral", sliding_window=511),
        of("qwen2", use_sliding_window=True, sliding_window=511),
        of("qwen2", rope_scaling={"type": "yarn", "factor": 4.0}),
        of("llama", rope_scaling={**LLAMA3, "original_max_position_embeddings": 4096}),
        *(
            {"model_type": kind, "architectures": [family.architecture]} | OWN_ROPE.get(kind, PLAIN_ROPE)
            for kind, family in FSDP_FAMILIES.items()
        ),
    ],
    ids=str,
)
def test_what_megatron_would_leave_out_is_taken_by_fsdp(config: dict[str, Any]) -> None:
    require_supported(config, 512)
    assert refusal(config, "megatron")
    shape = shape_of(SIZES | config)
    assert backend_of(gpu_job(response_tokens=448), shape) == "fsdp"


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("stablelm", "use_parallel_residual", True),
        ("gpt2", "scale_attn_by_inverse_layer_idx", True),
        ("olmo", "clip_qkv", 8.0),
        ("starcoder2", "use_bias", False),
    ],
)
def test_values_that_vllm_does_not_compute_are_refused(kind: str, key: str, value: object) -> None:
    config = {"model_type": kind, "architectures": [FSDP_FAMILIES[kind].architecture]}
    require_supported(config, 512)
    assert f"a config.json with {key}: {json.dumps(value)}, expected " in refusal(config | {key: value})


def test_dora_is_trained_with_fsdp() -> None:
    shape = shape_of(SIZES | of("qwen3"))
    sft = ("algorithm.type=sft", "reward=null")
    assert backend_of(gpu_job(*sft), shape) == "megatron"
    assert backend_of(gpu_job(*sft, "adapter.dora=true"), shape) == "fsdp"


def test_a_family_of_megatrons_is_trained_with_it_unless_asked_otherwise() -> None:
    shape = shape_of(SIZES | of("mistral", sliding_window=4096))
    assert backend_of(gpu_job(), shape) == "megatron"
    assert backend_of(gpu_job("trainer.backend=fsdp"), shape) == "fsdp"


@pytest.mark.parametrize(("family", "fields", "what"), NOT_LANGUAGE_MODELS)
def test_models_of_more_than_text_and_attention_are_refused(family: str, fields: dict[str, Any], what: str) -> None:
    message = refusal(of(family, **fields))
    assert what in message
    assert "Choose a model of a supported family" in message


GEMMA_3_4B = {
    "model_type": "gemma3",
    "architectures": ["Gemma3ForConditionalGeneration"],
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10_240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
}
"""What its config.json says of sizes, and no more."""


def test_gemma_3_is_taken_for_its_language_model() -> None:
    require_supported(GEMMA_3_4B, 4096)
    sizes = sizes_of(GEMMA_3_4B)
    assert sizes.parameters(1) == 3_880_263_168  # of 4,300,079,472 with what sees
    assert sizes.key_heads == 4 and sizes.heads == 8 and sizes.tied and not sizes.megatron
    assert len(sizes.linears) == 34 * 7
    assert "expected one of qwen2" in refusal(GEMMA_3_4B, "megatron")


QWEN_3_5_4B = {
    "model_type": "qwen3_5",
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "tie_word_embeddings": True,
    "text_config": {
        "model_type": "qwen3_5_text",
        "hidden_size": 2560,
        "intermediate_size": 9216,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 248_320,
        "full_attention_interval": 4,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "max_position_embeddings": 262_144,
        "mtp_num_hidden_layers": 1,
    },
    "vision_config": {"depth": 24},
}
"""A shape of its kind."""


def test_qwen_3_5_is_taken_for_its_language_model_of_two_kinds_of_layers() -> None:
    require_supported(QWEN_3_5_4B, 4096)
    sizes = sizes_of(QWEN_3_5_4B)
    assert sizes.parameters(1) == 4_205_751_296
    assert (sizes.attention_layers, len(sizes.states), sizes.heads, sizes.key_heads) == (8, 24, 16, 4)
    assert sizes.states[0].recurrent == 32 * 128 * 128 and sizes.states[0].inputs == 3 * (2 * 2048 + 4096)
    assert len({name.rpartition(".")[2] for name in (linear.name for linear in sizes.linears)}) == 12
    assert len(sizes.linears) == 8 * 7 + 24 * 8
    assert "linear_attention: layers without full attention" in refusal(
        of("qwen3", layer_types=["linear_attention", "full_attention"])
    )


@pytest.mark.parametrize(
    "change", ["adapter.excludeModules=[in_proj_z]", "adapter.targetModules=[in_proj_qkv, q_proj]"]
)
def test_adapters_that_vllm_serves_only_together_are_refused_apart(change: str) -> None:
    with pytest.raises(
        InputError, match=r"alone, in model\.language_model\.layers\.0\.linear_attn, expected in_proj_qkv and"
    ):
        judge(gpu_job(change), QWEN_3_5_4B)
    judge(gpu_job("adapter.excludeModules=[in_proj_qkv, in_proj_z]"), QWEN_3_5_4B)


def test_a_model_whose_layers_keep_a_state_is_not_split() -> None:
    with pytest.raises(InputError, match=r"rollout\.tensorParallelSize: got 2 for a model whose layers keep a state"):
        judge(gpu_job("cluster.gpusPerNode=2", "rollout.tensorParallelSize=2"), QWEN_3_5_4B)


def test_vllms_buffers_for_a_delta_nets_inputs_are_those_of_two_products() -> None:
    job = gpu_job("adapter.rank=32", "adapter.targetModules=[in_proj_qkv, in_proj_z, in_proj_b, in_proj_a]")
    wide, narrow = 2 * 2048 + 2 * 4096, 2 * 32
    planned = 24 * 32 * (4 * (2560 + wide) + 2 * (2560 + narrow))
    assert AdapterSize.of(job.adapter, sizes_of(QWEN_3_5_4B)).served(1) == planned


def test_no_more_sequences_run_than_the_cache_has_states_for() -> None:
    gpu = Gpu(total=48_000_000_000, free=47_000_000_000)
    job = gpu_job("rollout.promptsPerStep=256", "rollout.gpuMemoryFraction=0.4")
    plan = judge(job, QWEN_3_5_4B, gpu).plan
    assert plan is not None and plan.fits
    engine, sizes = plan.execution.engine, sizes_of(QWEN_3_5_4B)
    # A sequence has a block for each eight of its 24 states, and one for its keys and values.
    block = sizes.states[0].recurrent * 4 * 8
    assert engine.at_once < engine.sequences
    assert engine.at_once <= engine.kv_cache_bytes / (4 * block) < engine.at_once * 1.1
    assert sequences_held(sizes, plan.execution, 64, 256) == pytest.approx(engine.at_once, rel=0.02)


def test_delta_nets_are_of_bf16_on_a_gpu() -> None:
    with pytest.raises(InputError, match=r"trainer\.precision: got fp32 for a model with delta nets, expected bf16"):
        judge(gpu_job("trainer.precision=fp32"), QWEN_3_5_4B)
    judge(gpu_job("trainer.precision=fp32", "cluster.gpusPerNode=0"), QWEN_3_5_4B)


@pytest.mark.parametrize("family", REFUSED)
def test_families_that_are_asked_for_are_refused_with_their_own_reason(family: str) -> None:
    """Whatever else of its config.json is known: published files have these."""
    published = {
        "quantization_config": {"quant_method": "fp8"},
        "text_config": {},
        "num_experts": 8,
        "kv_lora_rank": 512,
    }
    message = refusal(of(family, **published))
    found = REFUSED[family]
    assert f"model_type {family} ({found.models}): {found.why}, expected a model of a supported family" in message
    assert message.endswith(f"The nearest is {found.instead}.")


def test_a_family_that_was_not_tried_is_refused() -> None:
    assert "model_type hyena (lorarl has not been tested with it), expected one of " in refusal(of("hyena"))
    assert "model_type None" in refusal({})


def test_sequences_beyond_the_positions_are_refused_where_generated() -> None:
    config = of("llama", max_position_embeddings=511)
    with pytest.raises(
        InputError, match=r"^spec\.rollout\.maxResponseTokens: got 512 tokens together with .*at most 511, the posit"
    ):
        require_supported(config, 512)
    require_supported(config, 512, rollouts=False)


MINISTRAL_3: dict[str, Any] = {
    "model_type": "ministral3",
    "architectures": ["Ministral3ForCausalLM"],
    "rope_parameters": {
        "rope_type": "yarn",
        "factor": 16.0,
        "original_max_position_embeddings": 500,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
}
"""As published, but for the original positions, 16,384."""


def test_ministral_3_is_taken_with_the_keys_that_vllm_reads() -> None:
    message = refusal(MINISTRAL_3)
    assert "positions that Transformers scales by 1 and vLLM by 1.277 (rope_type yarn)" in message
    mended = MINISTRAL_3 | {"rope_parameters": MINISTRAL_3["rope_parameters"] | _key_of(message)}
    message = refusal(mended)
    assert "queries that Transformers scales from position 500 on, and vLLM does not (llama_4_scaling_beta)" in message
    require_supported(mended, 500)
    require_supported(mended | _key_of(message), 512)


def test_ministral_3_without_positions_has_those_of_transformers() -> None:
    config = {key: value for key, value in MINISTRAL_3.items() if key != "rope_parameters"}
    assert "scales by 1 and vLLM by 1.277" in refusal(config)


@pytest.mark.parametrize("scale", [{"attention_factor": 0.5}, {"mscale": 0.707, "mscale_all_dim": 1.0}], ids=str)
def test_the_key_that_the_message_names_gives_vllm_the_same_yarn(
    scale: dict[str, float],
) -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, **scale}
    mended = rope | _key_of(refusal(of("qwen2", rope_scaling=rope)))
    require_supported(of("qwen2", rope_scaling=mended), 512)


def _key_of(message: str) -> dict[str, Any]:
    """The key that a message says to set in a copy's config.json."""
    found = re.search(r"[Ss]et (\w+): (.*?)(?: beside rope_type)? in a copy's config\.json", message)
    assert found is not None
    return {found[1]: json.loads(found[2])}


def refusal(config: dict[str, Any], backend: BackendName | None = None) -> str:
    """What a user reads about a model of a job with sequences of 512 tokens."""
    with pytest.raises(InputError, match=r"^spec\.model\.uri: got a config\.json with ") as refused:
        require_supported(config, 512, backend=backend)
    return str(refused.value)
