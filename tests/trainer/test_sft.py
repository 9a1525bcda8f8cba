"""Supervised fine-tuning: no engine, no reward; the loss falls to the entropy of the data."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from lorarl_trainer.data.encoding import EncodedRow
from support.in_process import Colocated
from support.loop_runs import adapter_digest, rows, run_in_process

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
