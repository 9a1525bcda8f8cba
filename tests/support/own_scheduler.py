"""vLLM's own scheduler and front end in place of ours, to compare with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from lorarl_trainer.engine.vllm import engine
from lorarl_trainer.engine.vllm.imports import import_vllm
from lorarl_trainer.samples.types import Completion

from .in_process import Colocated


@contextlib.contextmanager
def vllm_scheduler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Engines that are started within schedule as vLLM does."""
    import_vllm()
    from lorarl_trainer.engine.vllm import scheduler

    with monkeypatch.context() as patch:
        patch.setattr(scheduler, "RolloutScheduler", None)
        yield


def vllm_generate(worker: Colocated, prompts: Sequence[list[int]], seeds: Sequence[int] | None) -> list[Completion]:
    """What `LLM.generate` answers."""
    from vllm import SamplingParams

    own: engine.RolloutEngine = worker.engine
    limits: dict[str, Any] = {
        "max_tokens": own._config.max_response_tokens,
        "stop_token_ids": list(own._config.stop_token_ids),
        "detokenize": False,
    }
    if seeds is None:
        parameters = [SamplingParams(temperature=0.0, **limits) for _ in prompts]
    else:
        sampled = {"temperature": own._config.sampling.temperature, "logprobs": 0, "flat_logprobs": True}
        parameters = [SamplingParams(seed=seed, **sampled, **limits) for seed in seeds]
    requests = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
    outputs = own.llm.generate(requests, parameters, lora_request=own.slot.request, use_tqdm=False)
    return [_completion(output.outputs[0], own.slot.version) for output in outputs]


def _completion(answer: Any, version: int) -> Completion:
    logprobs = answer.logprobs.logprobs if answer.logprobs is not None else []
    return Completion(
        np.asarray(answer.token_ids), np.asarray(logprobs, np.float32), answer.finish_reason == "stop", version
    )
