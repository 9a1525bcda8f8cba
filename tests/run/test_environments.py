"""`lorarl run` with an environment: it trains, ends in the same bytes again and when resumed, and counts what fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lorarl_trainer.progress import read_rows
from run.command import COMMAND, digest
from run.jobs import Job, published

ROOT = Path(__file__).resolve().parents[2]
STEPS = 4
ENVIRONMENT = """
import asyncio, random, time

class Vowels:
    async def reset(self, row):
        self.fails = random.random() < 0.2 and row["prompt"] != "and what else"  # the held-out row
        return row["prompt"]

    async def step(self, text):
        await asyncio.sleep(time.time() % 0.02)
        if self.fails: raise ValueError("no more")
        return {"text": f"you wrote {len(text)}", "reward": sum(c in "aeiou" for c in text) / 8, "long": len(text)}
"""


def played(folder: Path, base: Path, backend: str) -> Job:
    job = Job(folder, base, backend=backend)
    (job.folder / "vowels.py").write_text(ENVIRONMENT)
    job.change(
        reward=None,
        environment={"function": "vowels:Vowels", "maxTurns": 3},
        # A model of random weights hardly ever ends a turn by itself.
        rollout={"maxPromptTokens": 64, "maxResponseTokens": 180, "stop": ["a", "e", "i", " "]},
        trainer={"steps": STEPS},
    )
    return job


def adapter(job: Job) -> str:
    return digest(job.checkpoints / published(job)[-1] / "lora_adapter/adapter_model.safetensors")


def test_a_run_and_a_resumed_one_end_in_the_same_bytes(tmp_path: Path, base: Path, backend: str) -> None:
    whole, resumed = (played(tmp_path / name, base, backend) for name in ("whole", "resumed"))
    ended = whole.run()
    assert ended.code == 0, ended.stderr
    assert resumed.run(f"trainer.steps={STEPS // 2}").code == 0
    assert resumed.run().code == 0
    assert adapter(whole) == adapter(resumed)
    rows = [row for row in ended.rows if "reward_mean" in row]
    assert all(1 <= row["episode/turns"] <= 3 and row["episode/environment_seconds"] > 0 for row in rows)
    assert all(
        sum(share for name, share in row.items() if name.startswith("episode/ended_")) == pytest.approx(1.0)
        for row in rows
    )
    failed = sum(row["reward_failures"] for row in rows)
    assert failed > 0
    assert any(row.get("episode/ended_exception", 0) > 0 for row in rows)
    assert "exception): step: ValueError: no more (vowels.py, line " in ended.stdout
    assert "reward/long" in rows[0] and "environment" in rows[0]["seconds"]
    shown = [json.loads(line) for line in (ended.out / "samples.jsonl").read_text().splitlines()]
    assert any("<|im_start|>user\nyou wrote " in sample["completion"] for sample in shown)


@pytest.mark.long
def test_the_example_learns_to_use_what_it_is_told(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "examples/guess/make_base.py", "--out", tmp_path / "out/guess"], check=True)
    command = [*COMMAND, ROOT / "examples/guess-cpu.yaml", "--out", tmp_path / "run"]
    subprocess.run(command, check=True, cwd=tmp_path)
    rows = [row for row in read_rows(tmp_path / "run/metrics.jsonl") if "reward_mean" in row]
    assert rows[-1]["reward_mean"] > rows[0]["reward_mean"] + 0.2
