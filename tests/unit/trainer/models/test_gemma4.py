"""Gemma 4, judged by shapes of its kind."""

from __future__ import annotations

from typing import Any

import pytest

from lorarl_trainer.errors import InputError
from lorarl_trainer.models.model_sizes import sizes_of
from lorarl_trainer.models.supported_models import is_served_merged, require_supported
from lorarl_trainer.planning.execution import kv_bytes_per_token
from lorarl_trainer.planning.usual import decide
from lorarl_trainer.planning.verdict import judge
from unit.trainer.models.test_supported_models import gpu_job

ROPE = {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}} | {
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}
}
E4B: dict[str, Any] = {
    "model_type": "gemma4_text",
    "hidden_size": 2560,
    "intermediate_size": 10_240,
    "num_hidden_layers": 42,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_kv_shared_layers": 18,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 7,
    "sliding_window": 512,
    "max_position_embeddings": 131_072,
    "rope_parameters": ROPE,
}
DENSE_31B = E4B | {
    "hidden_size": 5376,
    "intermediate_size": 21_504,
    "num_hidden_layers": 60,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "num_global_key_value_heads": 4,
    "attention_k_eq_v": True,
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 0,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10,
    "use_bidirectional_attention": "vision",
}


def of(text: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The config.json of published files."""
    whole = {"model_type": "gemma4", "architectures": ["Gemma4ForConditionalGeneration"], "tie_word_embeddings": True}
    return whole | {"text_config": text | changes, "vision_config": {}, "audio_config": {"hidden_size": 1024}}


def test_its_layers_are_of_several_sizes() -> None:
    require_supported(of(E4B), 4096)
    sizes = sizes_of(of(E4B))
    assert len(sizes.linears) == 24 * 9 + 18 * 7 + 1
    assert sizes.key_widths == (*(512,) * 5, 1024) * 4
    assert sizes.shapes["model.language_model.embed_tokens_per_layer.weight"] == (262_144, 42 * 256)
    spec = gpu_job()
    assert kv_bytes_per_token(sizes, decide(spec, sizes, None)) == 2 * sum(sizes.key_widths) * 2
    wide = sizes_of(of(E4B, use_double_wide_mlp=True)).shapes
    names = [f"model.language_model.layers.{number}.mlp.down_proj.weight" for number in (23, 24)]
    assert [wide[name] for name in names] == [(2560, 10_240), (2560, 20_480)]


def test_values_may_be_keys() -> None:
    require_supported(of(DENSE_31B), 4096)
    sizes = sizes_of(of(DENSE_31B))
    assert len(sizes.linears) == 50 * 7 + 10 * 6
    assert sizes.key_widths == (*(4096,) * 5, 2048) * 10
    assert is_served_merged(of(DENSE_31B)) and not is_served_merged(of(E4B))


def test_nothing_is_published_of_a_model_with_which_vllm_takes_no_adapters() -> None:
    needs = ("data.eval.uri=s3://team/held.jsonl", "checkpoint.uri=s3://team/a", "checkpoint.keepBest={}")
    entry = 'publish=[{"name": "sums", "minimum": 0.5, "aibrix": {"podSelector": {"app": "vllm"}}}]'
    changes = (*needs, "checkpoint.keepAll=true", entry)
    judge(gpu_job(*changes), of(E4B))
    with pytest.raises(InputError, match=r"spec\.publish: .*lorarl merge"):
        judge(gpu_job(*changes), of(DENSE_31B))


def test_servers_are_refused_for_a_model_with_which_vllm_takes_no_adapters() -> None:
    servers = 'rollout.servers=["http://vllm:8000"]'
    judge(gpu_job(servers), of(E4B))
    with pytest.raises(InputError, match=r"spec\.rollout\.servers: .* Remove spec\.rollout\.servers"):
        judge(gpu_job(servers), of(DENSE_31B))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"enable_moe_block": True, "num_experts": 128}, "Gemma 4 26B-A4B.*: its experts beside a dense MLP"),
        ({"use_bidirectional_attention": "all"}, 'use_bidirectional_attention: "all", expected .*: null or "vision"'),
        ({"rope_parameters": ROPE | {"full_attention": {"rope_type": "yarn"}}}, '"proportional", "factor": 1.0'),
        ({"rope_parameters": ROPE | {"full_attention": ROPE["full_attention"] | {"factor": 8.0}}}, '"factor": 8.0'),
    ],
)
def test_what_was_not_compared_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        require_supported(of(E4B, **changes), 4096)


def test_its_heads_are_not_split() -> None:
    with pytest.raises(InputError, match=r"rollout\.tensorParallelSize: got 2 for a model whose layers differ"):
        judge(gpu_job("cluster.gpusPerNode=2", "rollout.tensorParallelSize=2"), of(E4B))
