"""Attention while many sequences are decoded on a GPU: our kernel's, where vLLM would call flash attention 3.

With 512 sequences of 192 tokens at 7B's shape it takes 62 microseconds per layer instead of 98 (H200; reading the keys
takes 47). With long sequences both take about as long as reading them. Prompts, few sequences and everything but plain
causal attention remain flash attention's.

vLLM has a door for a whole backend of one's own. It would be taken for all models, also where vLLM chooses another one.
So the class that flash attention's backend names is replaced by one that extends it.

The class also fixes vLLM where some layers of a model have a window and others see everything. Their caches are one
group here (`engine.py`), and vLLM gives the window of a group to all its layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from lorarl_trainer.engine.vllm import binding, gpu_slices
from lorarl_trainer.engine.vllm.names import Attention
from lorarl_trainer.engine.vllm.patches.replaced import replaced

LEAST_TILES = 512
"""Sequences times key-value heads, from which on our kernel takes 0.6 to 1.05 times as long on an H200."""
_FLASH_3 = 3
_SIZES = (64, 128)
_EVERYTHING = (-1, -1)


@contextmanager
def decoding_attention() -> Iterator[None]:
    """Let an engine that starts within the block on a GPU decode so."""
    with replaced(Attention.get_impl_cls, staticmethod(_attention_class)):
        yield


def is_plain(layer: gpu_slices.FlashAttentionImpl) -> bool:
    """Whether a layer's attention is what our kernel computes, from bf16 or fp16, in place of flash attention 3."""
    return (
        layer.vllm_flash_attn_version == _FLASH_3
        and layer.attn_type == "decoder"
        and layer.head_size in _SIZES
        and layer.kv_cache_dtype in ("auto", "bfloat16", "float16")
        and tuple(layer.sliding_window) == _EVERYTHING
        and not layer.logits_soft_cap
        and layer.alibi_slopes is None
        and layer.sinks is None
    )


def decodes_many(step: gpu_slices.FlashAttentionMetadata, key_heads: int) -> bool:
    """Whether a step has one token of each sequence, and enough of them."""
    return (
        step.max_query_len == 1
        and step.num_actual_tokens * key_heads >= LEAST_TILES
        and not step.use_cascade
        and step.causal is True
    )


@cache
def _attention_class() -> type:
    """Return the class. It is made here because its base class is vLLM's, which must have been set up."""
    from lorarl_trainer.engine.vllm.patches.attention_kernel import attend_to_cache

    base: Any = Attention.FlashAttentionImpl

    class RolloutAttention(base):
        """Flash attention's layer, which decodes many sequences by our kernel."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._plain = is_plain(binding.checked(self, gpu_slices.FlashAttentionImpl, Attention))

        def forward(
            self,
            layer: torch.nn.Module,
            query: torch.Tensor,
            key: torch.Tensor,
            value: torch.Tensor,
            kv_cache: torch.Tensor,
            attn_metadata: gpu_slices.FlashAttentionMetadata | None,
            output: torch.Tensor,
            *scales: Any,
            **named_scales: Any,
        ) -> torch.Tensor:
            step = attn_metadata  # none while vLLM measures memory
            if step is not None and step.causal is True:
                step.sliding_window = None  # of the group: each layer has its own
                if self._plain and decodes_many(step, self.num_kv_heads):
                    count = step.num_actual_tokens
                    keys, values = kv_cache.transpose(1, 2).split(self.head_size, -1)
                    sequences = (step.block_table, step.seq_lens, step.max_seq_len)
                    attend_to_cache(query[:count], keys, values, *sequences, self.scale, output[:count])
                    return output
            usual = (layer, query, key, value, kv_cache, attn_metadata, output)
            attended: torch.Tensor = super().forward(*usual, *scales, **named_scales)
            return attended

    return RolloutAttention
