"""Supervised fine-tuning: no engine, no reward; the loss falls to the entropy of the data."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.data.stream import RowStream
from lorarl_trainer.from_data.sft import Answers
from lorarl_trainer.lora.tensor_names import PEFT_PREFIX
from lorarl_trainer.samples.requests import LossChoice
from support.in_process import Colocated, OneWorker, update_request
from support.loop_runs import adapter_digest, rows, run_in_process
from support.training import relative_difference

pytestmark = pytest.mark.both_backends

CHOICES = 4
ENTROPY = math.log(CHOICES) / 2  # nats a token: one of four tokens, then always the same end


def ambiguous_rows() -> list[EncodedRow]:
    """After each prompt, each of four tokens comes equally often, then the end."""
    return [EncodedRow(row.row, row.prompt_ids, [10 + choice, 2]) for row in rows(8) for choice in range(CHOICES)]


def sft(colocated, out: Path, **changes: object) -> Colocated:
    out.mkdir(exist_ok=True)
    settings = {
        "algorithm": "{type: sft}",
        "reward": "null",
        "rollout__promptsPerStep": 32,
        "trainer__learningRate": 2e-2,
        **changes,
    }
    worker: Colocated = colocated("qwen2-tied", **settings)
    worker.out = out
    worker.job.spec.checkpoint.__dict__["uri"] = f"file://{out}/checkpoints"
    return worker


def test_the_loss_falls_to_the_entropy_of_the_data(colocated, tmp_path: Path) -> None:
    worker = sft(colocated, tmp_path / "run", trainer__steps=60)
    steps = asyncio.run(run_in_process(worker, train_rows=ambiguous_rows()))
    assert steps[0].metrics["loss"] > ENTROPY + 1.0
    assert steps[-1].metrics["loss"] == pytest.approx(ENTROPY, abs=0.02)
    assert min(step.metrics["loss"] for step in steps) > ENTROPY - 0.01, "nothing can be better than the data"


def test_it_needs_no_engine(colocated, tmp_path: Path) -> None:
    assert sft(colocated, tmp_path / "run").worker.engine is None


def test_resuming_gives_the_same_bytes(colocated, tmp_path: Path) -> None:
    asyncio.run(run_in_process(sft(colocated, tmp_path / "whole", trainer__steps=6), train_rows=ambiguous_rows()))
    for stop_after in (3, None):
        worker = sft(colocated, tmp_path / "parts", trainer__steps=6)
        asyncio.run(run_in_process(worker, train_rows=ambiguous_rows(), stop_after=stop_after))
    assert adapter_digest(tmp_path / "parts") == adapter_digest(tmp_path / "whole")


def conversations(count: int) -> list[EncodedRow]:
    """Ragged rows of which some tokens are learned, the first and the last of the answer among them; some learn all."""
    stream, made = np.random.default_rng(1), []
    for number, row in enumerate(rows(count)):
        length = 2 + int(stream.integers(12))
        mask = [True, *(stream.random(length - 2) < 0.5).tolist(), True]
        answer = stream.integers(4, 60, length).tolist()
        made.append(EncodedRow(row.row, row.prompt_ids, answer, trained=mask if number % 3 else None))
    return made


def test_only_masked_tokens_have_a_gradient(colocated, tmp_path: Path) -> None:
    """The gradient is that of autograd through PEFT, with several micro-batches of ragged rows."""
    worker = sft(colocated, tmp_path / "run", trainer__tokensPerMicroBatch=40)
    worker.randomise()
    worker.write_peft(tmp_path / "adapter")
    data = conversations(9)
    source = Answers(RowStream(data, 0), {"": data}, len(data), OneWorker(worker.worker))
    samples = asyncio.run(source.next(1, 1)).samples_S
    total = sum(sample.trained_length for sample in samples)
    assert total < sum(sample.response_length for sample in samples)
    request = update_request(
        samples, loss=LossChoice("cross_entropy"), total_tokens=total, on_policy=False, limits=None
    )
    trained = worker.worker.backend
    metrics, _ = trained._trainer.forward_backward(request)
    found = trained.layout.gather([gradient.clone() for gradient in trained.optimizer.gradients])

    base = AutoModelForCausalLM.from_pretrained(worker.model, dtype=torch.float32)
    peft = PeftModel.from_pretrained(base, tmp_path / "adapter", is_trainable=True).eval()
    loss = torch.zeros(())
    for row in data:
        tokens = torch.tensor([[*row.prompt_ids, *row.answer_ids]])
        labels = torch.tensor([[-100] * len(row.prompt_ids) + row.answer_ids])
        if row.trained is not None:
            labels[0, len(row.prompt_ids) :][~torch.tensor(row.trained)] = -100
        logits = peft(tokens).logits[0, :-1]
        loss = loss + torch.nn.functional.cross_entropy(logits, labels[0, 1:], reduction="sum") / total
    loss.backward()
    expected = {
        name.removeprefix(PEFT_PREFIX).replace(".default", ""): parameter.grad
        for name, parameter in peft.named_parameters()
        if parameter.grad is not None
    }
    assert metrics["loss"] == pytest.approx(loss.item(), abs=1e-6)
    assert relative_difference(found, expected) < 1e-5
    held_out = asyncio.run(source.evaluate("", 1, 1))
    assert held_out.loss == pytest.approx(loss.item(), abs=1e-5), "the evaluation counts the same tokens"
