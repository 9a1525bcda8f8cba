"""Which layers and steps are our decoding kernel's, and which remain flash attention's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lorarl_trainer.engine.vllm.names import Attention
from lorarl_trainer.engine.vllm.patches import attention
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
    assert decodes_many(step(), KEY_HEADS)


@pytest.mark.parametrize(
    "change",
    [
        {"max_query_len": 2},
        {"num_actual_tokens": LEAST_TILES // 4 - 1},
        {"use_cascade": True},
        {"causal": torch.ones(4)},
        {"causal": False},
    ],
    ids=lambda change: next(iter(change)),
)
def test_other_steps_are_not(change: dict[str, Any]) -> None:
    assert not decodes_many(step(**change), KEY_HEADS)


class FlashAttention:
    """In place of vLLM's class, whose forward pass needs a GPU. It returns the window that vLLM's would apply."""

    num_kv_heads = KEY_HEADS

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(LAYER | {"scale": 1.0} | attributes)

    def forward(self, *arguments: Any, **_: Any) -> Any:
        group = arguments[5].sliding_window
        return group if group is not None else vars(self)["sliding_window"]


@pytest.mark.parametrize("window", [(1023, 0), (-1, -1)])
def test_each_layer_has_its_own_window(monkeypatch: pytest.MonkeyPatch, window: tuple[int, int]) -> None:
    """Although vLLM gives all layers of a group the window of one of them."""
    monkeypatch.setattr(Attention, "FlashAttentionImpl", FlashAttention)
    own = attention._attention_class.__wrapped__()(sliding_window=window)
    of_group = step(max_query_len=7, sliding_window=(1023, 0))
    assert own.forward(None, None, None, None, None, of_group, None) == window
    both_ways = step(causal=False, sliding_window=(1023, 1023))
    assert own.forward(None, None, None, None, None, both_ways, None) == (1023, 1023)
