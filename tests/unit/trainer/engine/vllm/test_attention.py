"""Which layers and steps are our decoding kernel's, and which remain flash attention's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lorarl_trainer.engine.vllm.patches.attention import LEAST_TILES, decodes_many, is_plain

LAYER = {
    "vllm_flash_attn_version": 3,
    "attn_type": "decoder",
    "head_size": 128,
    "kv_cache_dtype": "auto",
    "sliding_window": (-1, -1),
    "logits_soft_cap": 0,
    "alibi_slopes": None,
    "sinks": None,
}
STEP = {
    "max_query_len": 1,
    "num_actual_tokens": LEAST_TILES // 4,
    "use_cascade": False,
    "causal": True,
    "sliding_window": (-1, -1),
}
KEY_HEADS = 4


def layer(**changes: Any) -> Any:
    return SimpleNamespace(**(LAYER | changes))


def step(**changes: Any) -> Any:
    return SimpleNamespace(**(STEP | changes))


def test_plain_attention_is_ours() -> None:
    assert is_plain(layer()) and is_plain(layer(head_size=64, kv_cache_dtype="bfloat16"))


@pytest.mark.parametrize(
    "change",
    [
        {"vllm_flash_attn_version": 2},
        {"attn_type": "encoder"},
        {"head_size": 80},
        {"kv_cache_dtype": "fp8"},
        {"sliding_window": (1023, 0)},
        {"logits_soft_cap": 50.0},
        {"alibi_slopes": torch.ones(4)},
        {"sinks": torch.ones(4)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_other_attention_is_not(change: dict[str, Any]) -> None:
    assert not is_plain(layer(**change))


def test_a_step_of_many_single_tokens_is_ours() -> None:
    assert decodes_many(step(), KEY_HEADS) and decodes_many(step(sliding_window=None), KEY_HEADS)


@pytest.mark.parametrize(
    "change",
    [
        {"max_query_len": 2},
        {"num_actual_tokens": LEAST_TILES // 4 - 1},
        {"use_cascade": True},
        {"causal": torch.ones(4)},
        {"causal": False},
        {"sliding_window": (1023, 0)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_other_steps_are_not(change: dict[str, Any]) -> None:
    assert not decodes_many(step(**change), KEY_HEADS)
