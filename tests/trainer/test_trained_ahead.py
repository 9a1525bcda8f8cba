"""Samples that are trained while others are still being generated: the update is the same, but for rounding."""

from __future__ import annotations

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lorarl_trainer.devices.cpu import CpuDevice
from lorarl_trainer.engine.vllm import batching
from lorarl_trainer.samples.types import GradientRequest, LossChoice, Sample
from support.in_process import Colocated, prompts, samples_of, update_request
from support.loop_runs import run_in_process
from support.tiny_models import VOCABULARY
from support.training import BareTrainer, grouped_samples, relative_difference


def ahead(samples: list[Sample], **changes: object) -> GradientRequest:
    request = update_request(samples, **changes)
    return GradientRequest(request.samples, request.loss, request.temperature, request.on_policy)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("loss", [LossChoice("policy_gradient", 0.2), LossChoice("policy_gradient", 0.2, 0.1)])
def test_gradient_and_metrics_do_not_depend_on_the_order_of_arrival(model_folder, packed: bool, loss) -> None:
    trainer = BareTrainer(CpuDevice(), model_folder("qwen2"), "fp32", budget=100, packed=packed)
    samples = grouped_samples(VOCABULARY, prompts=8)
    samples = [replace(s, advantage=0.0) if index % 5 == 0 else s for index, s in enumerate(samples)]
    tokens = sum(sample.response_length for sample in samples)
    metrics, gradients = trainer.metrics_and_gradients(samples, loss=loss)
    for seed in range(4):
        stream = np.random.default_rng(seed)
        order = [samples[index] for index in stream.permutation(len(samples))]
        cuts = sorted(stream.choice(len(order), 3, replace=False).tolist())
        for begin, end in zip([0, *cuts], cuts, strict=False):
            trainer.trainer.accumulate(ahead(order[begin:end], loss=loss, temperature=0.8), alone=True)
        rest = order[cuts[-1] :] if seed else []
        if not seed:
            trainer.trainer.accumulate(ahead(order[cuts[-1] :], loss=loss, temperature=0.8), alone=True)
        found_metrics, found = trainer.metrics_and_gradients(rest, loss=loss, total_tokens=tokens, zero=False)
        assert found_metrics == pytest.approx(metrics, abs=1e-6)
        assert relative_difference(found, gradients) < 1e-6


def test_a_thread_trains_while_the_engine_generates(colocated) -> None:
    worker: Colocated = colocated(rollout__maxResponseTokens=64)
    worker.randomise()
    worker.sync()
    asked = prompts(64)
    samples = samples_of(prompts(), worker.generate(prompts()))
    expected = worker.worker.update(update_request(samples, learning_rate=0.0))
    alone = worker.generate(asked)
    with ThreadPoolExecutor(1) as thread:
        training = [thread.submit(worker.worker.accumulate, ahead(samples[place : place + 3])) for place in (0, 3, 6)]
        beside = worker.generate(asked)
        for each in training:
            each.result()
    rest = update_request(samples[9:], total_tokens=sum(s.response_length for s in samples), learning_rate=0.0)
    found = worker.worker.update(rest)
    assert found.metrics == pytest.approx(expected.metrics, abs=1e-6)
    assert [c.tokens.tolist() for c in beside] == [c.tokens.tolist() for c in alone]


def test_an_update_is_withheld_with_what_was_trained_ahead_of_it(colocated) -> None:
    worker: Colocated = colocated()
    worker.sync()
    samples = samples_of(prompts(), worker.generate(prompts()))
    expected = worker.worker.update(update_request(samples, learning_rate=0.0)).metrics
    before = worker.export()
    worker.worker.accumulate(ahead([replace(samples[0], advantage=math.inf), *samples[1:6]]))
    withheld = worker.worker.update(update_request(samples[6:]))
    assert not math.isfinite(withheld.metrics["loss"])
    worker.worker.accumulate(ahead([replace(samples[0], rollout_logprobs=samples[0].rollout_logprobs + 1.0)]))
    drifted = worker.worker.update(update_request(samples[1:]))
    assert drifted.disagreement is not None
    assert all(torch.equal(tensor, before[name]) for name, tensor in worker.export().items())
    again = worker.worker.update(update_request(samples, learning_rate=0.0)).metrics
    assert again == pytest.approx(expected, abs=1e-7), "nothing of them is left"


def test_a_run_learns_the_same_and_says_what_it_hid(colocated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "CHUNK_SECONDS", 0.0)
    changes = {
        "trainer__steps": 3,
        "trainer__learningRate": 1e-3,
        "rollout__maxResponseTokens": 200,
        "algorithm__groupSize": 2,
    }
    runs, adapters = [], []
    for tokens in (None, 100):
        worker: Colocated = colocated(**changes, checkpoint__uri=f"file://{tmp_path}/{tokens}")
        runs.append(asyncio.run(run_in_process(worker, tokens_trained_ahead=tokens)))
        adapters.append(worker.export())
    alternating, overlapped = runs
    for one, other in zip(alternating, overlapped, strict=True):
        assert other.metrics == pytest.approx(one.metrics, abs=1e-4)
        assert "overlap" not in one.seconds
    assert sum(step.seconds["overlap"] for step in overlapped) > 0
    assert all(torch.allclose(adapters[0][name], adapters[1][name], atol=3e-4) for name in adapters[0])
