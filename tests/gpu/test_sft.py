"""Supervised fine-tuning on one GPU, in bf16 on the fused layers: it learns, it needs no engine, and it resumes."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from lorarl_trainer.data.encoding import EncodedRow
from support.in_process import Colocated
from support.loop_runs import rows, run_in_process

CHOICES = 4
ENTROPY = math.log(CHOICES) / 2  # nats a token: one of four tokens, then always the same end
STEPS = 60


def sft(colocated, out: Path, **changes: object) -> Colocated:
    """A job whose every setting of rollouts is the default, as the contract asks for sft."""
    settings = {
        "cluster__gpusPerNode": 1,
        "algorithm": "{type: sft}",
        "reward": "null",
        "rollout__promptsPerStep": 32,
        "trainer__learningRate": 1e-2,
        "trainer__steps": STEPS,
        **changes,
    }
    worker: Colocated = colocated("qwen3-gpu", **settings)
    worker.out = out
    worker.job.spec.checkpoint.__dict__["uri"] = f"file://{out}/checkpoints"  # frozen: only tests change it
    return worker


def ambiguous_rows() -> list[EncodedRow]:
    """After each prompt, each of four tokens comes equally often, then the end."""
    return [EncodedRow(row.row, row.prompt_ids, [10 + choice, 2]) for row in rows(8) for choice in range(CHOICES)]


@pytest.mark.parametrize("adapter_type", ["canonical_lora", "lora"])
def test_the_loss_falls_to_the_entropy_of_the_data(colocated, tmp_path: Path, adapter_type: str) -> None:
    worker = sft(colocated, tmp_path, adapter__type=adapter_type)
    assert worker.worker.engine is None
    base = worker.worker.backend.base_digest()
    steps = asyncio.run(run_in_process(worker, train_rows=ambiguous_rows()))
    assert steps[0].metrics["loss"] > ENTROPY + 1.0
    assert steps[-1].metrics["loss"] == pytest.approx(ENTROPY, abs=0.05)
    assert worker.worker.backend.base_digest() == base


def test_a_resumed_run_continues_where_it_stopped(colocated, tmp_path: Path) -> None:
    whole = asyncio.run(run_in_process(sft(colocated, tmp_path / "whole"), train_rows=ambiguous_rows()))
    parts = [
        step
        for stop_after in (STEPS // 2, None)
        for step in asyncio.run(
            run_in_process(sft(colocated, tmp_path / "parts"), train_rows=ambiguous_rows(), stop_after=stop_after)
        )
    ]
    assert [step.step for step in parts] == [step.step for step in whole]
    for one, other in zip(parts, whole, strict=True):  # attention's backward adds up in no fixed order
        assert one.metrics["loss"] == pytest.approx(other.metrics["loss"], abs=0.05)
