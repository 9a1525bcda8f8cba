"""What vLLM refuses at its start, in a user's words and fields."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lorarl_trainer.engine.vllm.config import EngineConfig
from lorarl_trainer.errors import InputError

_TOO_SMALL = re.compile(r"\(([\d.]+ GiB) KV cache is needed.*available KV cache memory \(([\d.]+ GiB)\)", re.DOTALL)


@contextmanager
def refusals(hf_config: Any, config: EngineConfig) -> Iterator[None]:
    """Explain that the samples are too long, for the KV cache or for the model.

    vLLM decides both: it knows how a model's RoPE is scaled, and what its layers keep. Both of its messages name
    max_model_len.

    Raises:
        InputError: they are.
    """
    try:
        yield
    except ValueError as error:
        if (small := _TOO_SMALL.search(str(error))) is not None:
            raise _cache_too_small(config, needed=small[1], available=small[2]) from error
        if "KV cache" in str(error) or "max_model_len" not in str(error):
            raise
        raise _too_few_positions(
            config, getattr(hf_config.get_text_config(), "max_position_embeddings", "fewer")
        ) from error


def _cache_too_small(config: EngineConfig, needed: str, available: str) -> InputError:
    return InputError(
        "spec.rollout.maxResponseTokens",
        f"{config.max_response_tokens}, with rollout.maxPromptTokens {config.max_prompt_tokens}: one such sample needs "
        f"{needed} of KV cache, and vLLM has {available}",
        "a KV cache that holds at least one sample of the greatest length",
        "Lower one of them, or raise spec.rollout.gpuMemoryFraction or spec.rollout.tensorParallelSize.",
    )


def _too_few_positions(config: EngineConfig, limit: int | str) -> InputError:
    return InputError(
        "spec.rollout.maxResponseTokens",
        f"{config.max_response_tokens}, with rollout.maxPromptTokens {config.max_prompt_tokens}, "
        f"for a model of {limit} positions",
        "at most as many tokens in both together as the model has positions",
        "Lower one of them.",
    )
