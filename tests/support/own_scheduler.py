"""vLLM's own scheduler and front end in place of ours, to compare with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from lorarl_trainer.engine.vllm import engine
from lorarl_trainer.engine.vllm.imports import import_vllm
from lorarl_trainer.samples.sample import Completion

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
    """What vLLM's front end answers."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    own: engine.RolloutEngine = worker.engine
    limits: dict[str, Any] = {
        "max_tokens": own._config.max_response_tokens,
        "stop_token_ids": list(own._config.stop_token_ids),
        "detokenize": False,
        "output_kind": RequestOutputKind.FINAL_ONLY,
    }
    if seeds is None:
        parameters = [SamplingParams(temperature=0.0, **limits) for _ in prompts]
    else:
        sampled = {"temperature": own._config.sampling.temperature, "logprobs": 0, "flat_logprobs": True}
        parameters = [SamplingParams(seed=seed, **sampled, **limits) for seed in seeds]
    for at, (prompt, sampling) in enumerate(zip(prompts, parameters, strict=True)):
        request = {"prompt_token_ids": list(prompt)}
        own.llm_engine.add_request(str(at), request, sampling, lora_request=own.slot.request)
    answers: dict[int, Completion] = {}
    while own.llm_engine.has_unfinished_requests():
        for output in own.llm_engine.step():
            answers[int(output.request_id)] = _completion(output.outputs[0], own.slot.version)
    return [answers[at] for at in range(len(prompts))]


def _completion(answer: Any, version: int) -> Completion:
    logprobs = answer.logprobs.logprobs if answer.logprobs is not None else []
    return Completion(
        np.asarray(answer.token_ids), np.asarray(logprobs, np.float32), answer.finish_reason == "stop", version
    )
