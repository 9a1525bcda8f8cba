"""One run of `bench_scheduler.py`: generates with one scheduler and counts how many samples each step has."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from lorarl_trainer.devices.cuda import CudaDevice
from lorarl_trainer.timing import StartClock

os.environ.update(CudaDevice().environment(threads=8), RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np

from generation.engine import push_adapter, start, variant_of_vllm
from side_by_side.work import SHAPES

STOPS_FROM = 1000
"""The first of the tokens that end a completion. Prompts have larger ones."""


@dataclass
class Steps:
    """What a scheduler asked for, step by step."""

    running: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    kv_cache: list[float] = field(default_factory=list)
    preemptions: int = 0

    def figures(self) -> dict[str, float]:
        """Means over the steps. While others wait: over those that some waited for, 0 if there is none."""
        running, waiting = np.array(self.running), np.array(self.waiting)
        return {
            "steps": len(running),
            "running": float(running.mean()),
            "running_while_waiting": float(running[waiting > 0].mean()) if waiting.any() else 0.0,
            "steps_while_waiting": int((waiting > 0).sum()),
            "kv_cache": max(self.kv_cache),
            "preemptions": self.preemptions,
        }


def main() -> None:
    options = argparse.Namespace(**json.loads(sys.argv[1]))
    stops = range(STOPS_FROM, STOPS_FROM + SHAPES[options.size].vocab_size // options.mean)
    with tempfile.TemporaryDirectory() as folder, variant_of_vllm("one_adapter", {}), scheduler_of(options.scheduler):
        engine = start(
            options,
            "one_adapter",
            Path(folder),
            StartClock("engine", "process"),
            stop_token_ids=tuple(stops),
            kv_cache_most=int(1e9 * options.kv_cache_gb),
        )
    push_adapter(engine, options)
    stream = np.random.default_rng(0)
    alone = stream.integers(STOPS_FROM + len(stops), 100_000, (options.groups, options.prompt)).tolist()
    prompts = [prompt for prompt in alone for _ in range(options.group_size)]
    generate = of_vllm if options.scheduler == "vllm" else of_lorarl
    generate(engine, [[5] * 16] * 8, max_tokens=16)
    engine.llm_engine.reset_prefix_cache()
    with watched(engine.llm_engine.engine_core.engine_core.scheduler) as steps:
        clock = time.perf_counter()
        lengths = generate(engine, prompts, options.tokens)
        seconds = time.perf_counter() - clock
    made = sum(lengths)
    print(f"{options.scheduler}: {len(lengths)} samples of {made / len(lengths):.0f} tokens, {max(lengths)} at most")
    found = steps.figures() | {
        "scheduler": options.scheduler,
        "samples": len(lengths),
        "mean": made / len(lengths),
        "longest": max(lengths),
        "seconds": seconds,
        "ms_a_step": 1e3 * seconds / len(steps.running),
        "tokens_per_s": made / seconds,
    }
    Path(options.answer).write_text(json.dumps(found | {"options": vars(options)}))


@contextlib.contextmanager
def scheduler_of(scheduler: str) -> Iterator[None]:
    """Let engines that start within schedule as vLLM does, or as lorarl."""
    if scheduler != "vllm":
        yield
        return
    from lorarl_trainer.engine.vllm import scheduler as ours

    with mock.patch.object(ours, "RolloutScheduler", None):
        yield


def of_lorarl(engine: Any, prompts: list[list[int]], max_tokens: int) -> list[int]:
    """Generate as a rollout does, and return the lengths of the completions."""
    from lorarl_trainer.samples.requests import GenerationRequest

    asked = enumerate(prompts)
    engine.submit({at: GenerationRequest(prompt, seed=at, max_tokens=max_tokens) for at, prompt in asked})
    return [len(completion.tokens) for _, part in engine.results() for completion in part]


def of_vllm(engine: Any, prompts: list[list[int]], max_tokens: int) -> list[int]:
    """Generate with vLLM's own front end and scheduler, and return the lengths of the completions."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    own = engine._config
    limits = {"max_tokens": max_tokens, "stop_token_ids": list(own.stop_token_ids), "detokenize": False}
    limits["output_kind"] = RequestOutputKind.FINAL_ONLY
    sampled = {"temperature": own.sampling.temperature, "logprobs": 0, "flat_logprobs": True}
    parameters = [SamplingParams(seed=seed, **sampled, **limits) for seed in range(len(prompts))]
    for at, (prompt, sampling) in enumerate(zip(prompts, parameters, strict=True)):
        request = {"prompt_token_ids": prompt}
        engine.llm_engine.add_request(str(at), request, sampling, lora_request=engine.slot.request)
    lengths = [0] * len(prompts)
    while engine.llm_engine.has_unfinished_requests():
        for output in engine.llm_engine.step():
            lengths[int(output.request_id)] = len(output.outputs[0].token_ids)
    return lengths


@contextlib.contextmanager
def watched(scheduler: Any) -> Iterator[Steps]:
    """Count what a scheduler asks for."""
    steps, schedule = Steps(), scheduler.schedule

    def counted(*given: Any) -> Any:
        step = schedule(*given)
        if step.num_scheduled_tokens:
            steps.running.append(len(step.num_scheduled_tokens))
            steps.waiting.append(len(scheduler.waiting))
            steps.kv_cache.append(scheduler.kv_cache_manager.usage)
            steps.preemptions += len(step.preempted_req_ids or ())
        return step

    with mock.patch.object(scheduler, "schedule", counted):
        yield steps


if __name__ == "__main__":
    main()
