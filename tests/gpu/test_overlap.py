"""Training beside generation on one GPU: the same gradient, the same completions, and a shorter step."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from lorarl_trainer.samples.agreement import AgreementLimits
from lorarl_trainer.samples.types import GradientRequest, Sample, Samples, UpdateRequest
from support.in_process import STOP, Colocated, prompts, samples_of, update_request
from support.loop_runs import run_in_process
from support.own_layers import in_common
from support.training import relative_difference

LOOSE = AgreementLimits(tolerance=1.0)
LONG = {"trainer__overlap": True, "rollout__promptsPerStep": 64, "rollout__maxResponseTokens": 200}


def gradient(worker: Colocated, request: UpdateRequest) -> dict[str, torch.Tensor]:
    """The gradient of an update that changes nothing, clipped."""
    assert worker.worker.update(request).disagreement is None
    return {str(index): part.cpu().clone() for index, part in enumerate(worker.worker.backend.optimizer.gradients)}


def test_a_gradient_beside_generation_is_the_same(on_gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    worker: Colocated = on_gpu("qwen2-gpu", **LONG)
    assert worker.built.overlapped
    worker.randomise(scale=0.02)
    worker.sync()
    asked = [prompt for prompt in prompts(64) for _ in range(4)]
    samples = samples_of(prompts(64), worker.generate(prompts(64)))
    whole = update_request(samples, learning_rate=0.0, limits=LOOSE)
    expected, alone = gradient(worker, whole), worker.generate(asked)
    beside: list[bool] = []
    accumulate = worker.worker.backend.accumulate

    def noted(request: GradientRequest, *, alone: bool) -> None:
        beside.append(not alone)
        accumulate(request, alone=alone)

    monkeypatch.setattr(worker.worker.backend, "accumulate", noted)

    def part(chosen: list[Sample]) -> GradientRequest:
        return GradientRequest(Samples(chosen), whole.loss, whole.temperature, whole.on_policy)

    def wait_for_the_engine() -> None:
        while not worker.rollouts.generating:
            time.sleep(1e-4)

    with ThreadPoolExecutor(1) as thread:
        chunks = worker.worker.generate(asked, range(len(asked)))
        thread.submit(wait_for_the_engine)
        parts = [thread.submit(worker.worker.accumulate, part(samples[at : at + 8])) for at in range(0, 48, 8)]
        generated = {i: c for chunk in chunks for i, c in zip(chunk.indices, chunk.completions, strict=True)}
        for each in parts:
            each.result()
    rest = update_request(samples[48:], total_tokens=whole.total_tokens, learning_rate=0.0, limits=LOOSE)
    found = gradient(worker, rest)
    print(f"gradients differ by {relative_difference(found, expected):.2e}; beside generation: {beside}")
    assert any(beside)
    assert relative_difference(found, expected) < 2e-2
    share, apart = in_common([generated[index] for index in range(len(asked))], alone)
    assert share > 0.8 and apart.mean() < 0.01


def test_the_engine_comes_first(on_gpu) -> None:
    worker: Colocated = on_gpu("qwen2-gpu")
    runner = worker.engine.llm_engine.collective_rpc(lambda w: w.model_runner)[0]
    worker.sync()
    worker.generate(prompts(4))
    assert torch.cuda.current_stream().priority < 0 and runner.main_stream.priority < 0
    assert torch.cuda.graph.default_capture_stream.priority < 0, "a graph's kernels have the priority of its capture"


def test_a_ragged_step_is_shorter(tmp_path: Path) -> None:
    """Completions of geometric lengths: most end long before the last."""
    folder, seconds = write_ragged_model(tmp_path / "model"), []
    changes: dict[str, Any] = {
        "cluster__gpusPerNode": 1,
        "trainer__overlap": True,
        "algorithm__groupSize": 8,
        "rollout__promptsPerStep": 64,
        "rollout__maxResponseTokens": 1536,
        "rollout__gpuMemoryFraction": 0.3,
        "trainer__steps": 3,
        "trainer__learningRate": 1e-5,
        "checkpoint__every": 100,
    }
    for name in ("alternating", "overlapped"):
        worker = Colocated(folder, tmp_path / name, **changes)
        assert worker.built.overlapped
        ahead = worker.built.micro_batch_tokens if name == "overlapped" else None
        steps = asyncio.run(run_in_process(worker, tokens_trained_ahead=ahead))
        seconds.append(min(sum(step.seconds.values()) for step in steps[1:]))
        print(name, [{phase: round(value, 2) for phase, value in step.seconds.items()} for step in steps])
        worker.close()
        torch.cuda.empty_cache()
    assert seconds[1] < 0.97 * seconds[0]


def write_ragged_model(folder: Path) -> Path:
    """1.4B random parameters, of which one token in some 400 ends a completion."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=320,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=24,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        eos_token_id=STOP[0],
    )
    with torch.device("cuda"):
        model = Qwen2ForCausalLM._from_config(config, dtype=torch.bfloat16)
    with torch.no_grad():
        model.lm_head.weight[STOP[0]] = 0.0
    model.save_pretrained(folder)
    del model
    return folder
