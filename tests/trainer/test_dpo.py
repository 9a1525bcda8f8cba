"""Preference optimisation: the gradient of an independent autograd, whole runs on pairs, and their evaluation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from lorarl_api.v1alpha1 import AlgorithmSpec
from lorarl_trainer.algorithms.registry import get_algorithm
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.data.stream import RowStream
from lorarl_trainer.from_data.dpo import Pairs, samples_of
from support.in_process import Colocated, OneWorker, random_adapter, update_request
from support.loop_runs import adapter_digest, rows, run_in_process
from support.training import relative_difference
from support.transformers_side import gradients, response_logprobs

pytestmark = pytest.mark.both_backends

BETA, SMOOTHING = 0.3, 0.1


def pairs(count: int, seed: int = 0) -> list[EncodedRow]:
    """Pairs of ragged answers, two of each prompt."""
    stream, made = np.random.default_rng(seed), []
    for number in range(count):
        prompt = rows(count)[number // 2].prompt_ids
        answers = [stream.integers(4, 60, 1 + int(stream.integers(7))).tolist() for _ in range(2)]
        made.append(EncodedRow(rows(count)[number].row, prompt, *answers))
    return made


def learnable(count: int, seed: int = 0) -> list[EncodedRow]:
    """Pairs whose chosen answers are of even tokens, and whose rejected ones are of odd tokens."""
    stream = np.random.default_rng(seed)
    return [
        EncodedRow(row.row, row.prompt_ids, *((2 * stream.integers(5, 25, 3) + odd).tolist() for odd in (0, 1)))
        for row in rows(count)
    ]


def dpo(colocated: Callable[..., Colocated], out: Path, **changes: object) -> Colocated:
    out.mkdir(exist_ok=True)
    settings = {"algorithm": "{type: dpo}", "reward": "null", "rollout__promptsPerStep": 8, **changes}
    worker: Colocated = colocated("qwen2-tied", **settings)
    worker.out = out
    worker.job.spec.checkpoint.__dict__["uri"] = f"file://{out}/checkpoints"  # frozen: only tests change it
    return worker


def answer_logprob(model: Any, prompt: list[int], answer: Any) -> torch.Tensor:
    return response_logprobs(model, torch.tensor([*prompt, *answer]), len(prompt)).sum()


@pytest.mark.parametrize("reference", ["base", "start"])
def test_the_gradient_is_that_of_autograd_through_peft(colocated, tmp_path: Path, reference: str) -> None:
    """Several micro-batches of pairs: a packed one holds at most three of the shortest."""
    worker = dpo(colocated, tmp_path, trainer__tokensPerMicroBatch=40)
    trained, start = worker.worker.backend, random_adapter(worker, seed=1)
    worker.load(start)
    worker.write_peft(tmp_path / "start")
    if reference == "start":
        trained._trainer.keep_reference()
    worker.load(random_adapter(worker, seed=2))
    worker.write_peft(tmp_path / "adapter")
    spec = {"type": "dpo", "dpo": {"beta": BETA, "labelSmoothing": SMOOTHING}}
    data = pairs(10)
    samples = samples_of(data)
    request = update_request(
        samples,
        loss=get_algorithm(AlgorithmSpec.model_validate(spec), 8).loss,
        total_samples=len(samples),
        on_policy=False,
        limits=None,
    )
    metrics, _ = trained._trainer.forward_backward(request)
    found = trained.layout.gather([gradient.clone() for gradient in trained.optimizer.gradients])

    base = AutoModelForCausalLM.from_pretrained(worker.model, dtype=torch.float32)
    peft = PeftModel.from_pretrained(base, tmp_path / "adapter", is_trainable=True).eval()
    with torch.no_grad():
        of_reference = AutoModelForCausalLM.from_pretrained(worker.model, dtype=torch.float32)
        if reference == "start":
            of_reference = PeftModel.from_pretrained(of_reference, tmp_path / "start").eval()
        before = [
            [answer_logprob(of_reference, row.prompt_ids, answer) for answer in (row.answer_ids, row.rejected_ids)]
            for row in data
        ]
    total = torch.zeros(())
    for row, (chosen_before, rejected_before) in zip(data, before, strict=True):
        chosen = answer_logprob(peft, row.prompt_ids, row.answer_ids) - chosen_before
        rejected = answer_logprob(peft, row.prompt_ids, row.rejected_ids) - rejected_before
        right = torch.sigmoid(BETA * (chosen - rejected))
        total = total - ((1 - SMOOTHING) * right.log() + SMOOTHING * (1 - right).log()) / len(data)
    total.backward()
    expected = gradients(peft)
    assert metrics["loss"] == pytest.approx(total.item(), abs=1e-6)
    assert found.keys() == expected.keys()
    assert relative_difference(found, expected) < 1e-5


def test_a_run_learns_to_tell_held_out_pairs_apart(colocated, tmp_path: Path) -> None:
    worker = dpo(colocated, tmp_path, trainer__steps=20)
    assert worker.worker.engine is None, "nothing is generated"
    found = asyncio.run(run_in_process(worker, train_rows=learnable(40)))
    first, last = found[0].metrics, found[-1].metrics
    assert first["loss"] == pytest.approx(np.log(2), abs=1e-5) and first["preference/accuracy"] == pytest.approx(0.5)
    assert last["preference/accuracy"] == 1.0 and last["loss"] < 0.3
    assert last["preference/margin"] == pytest.approx(last["preference/chosen"] - last["preference/rejected"], abs=1e-5)
    done = evaluated(worker, learnable(40, seed=1))
    assert done.score is not None and done.score > 0.9 and done.metrics["margin"] > 0
    assert done.metrics["score_low"] < done.score <= done.metrics["score_high"]


def test_an_untrained_adapter_tells_nothing_apart(colocated, tmp_path: Path) -> None:
    done = evaluated(dpo(colocated, tmp_path), learnable(10))
    assert done.score == pytest.approx(0.5, abs=0.3) and done.metrics["margin"] == pytest.approx(0.0, abs=1e-5)


def evaluated(worker: Colocated, held_out: list[EncodedRow]) -> Any:
    algorithm = get_algorithm(worker.spec.algorithm, 8)
    source = Pairs(RowStream(held_out, 0), {"": held_out}, 8, OneWorker(worker.worker), algorithm.loss)
    return asyncio.run(source.evaluate("", 1, 1))


def test_resuming_gives_the_same_bytes(colocated, tmp_path: Path) -> None:
    data = learnable(12)
    asyncio.run(run_in_process(dpo(colocated, tmp_path / "whole", trainer__steps=6), train_rows=data))
    for stop_after in (3, None):
        worker = dpo(colocated, tmp_path / "parts", trainer__steps=6)
        asyncio.run(run_in_process(worker, train_rows=data, stop_after=stop_after))
    assert adapter_digest(tmp_path / "parts") == adapter_digest(tmp_path / "whole")
