"""PPO with its critic in whole runs: it learns, its metrics are there, and a resumed run ends in the same bytes."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from support.in_process import Colocated
from support.loop_runs import run_in_process
from trainer.test_resume import start

pytestmark = pytest.mark.both_backends

KL = "klCoefficient: 0.1, kl: {placement: reward, target: 0.05}"
OPTIONS = "{gaeLambda: 0.95, criticLearningRate: 2.0e-2, criticWarmupSteps: 2}"
PPO = f"{{type: ppo, updatesPerStep: 2, {KL}, ppo: {OPTIONS}}}"
CHANGES = {"algorithm": PPO, "adapter__dropout": 0.1, "rollout__promptsPerStep": 8, "trainer__warmupSteps": 2}


def digest(out: Path, step: int) -> str:
    """Of all files of a checkpoint that say nothing of when it was made."""
    (folder,) = out.glob(f"checkpoints/*/iter_{step:07d}*")
    files = [folder / "lora_adapter/adapter_model.safetensors", *sorted(folder.glob("trainer_state/*"))]
    assert len(files) >= 3
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


@pytest.mark.parametrize("stop_after", [2, 4])
def test_an_interrupted_run_keeps_the_critic_and_its_bytes(
    colocated: Callable[..., Colocated], tmp_path: Path, stop_after: int
) -> None:
    whole = asyncio.run(run_in_process(start(colocated, tmp_path / "whole", **CHANGES)))
    first = asyncio.run(run_in_process(start(colocated, tmp_path / "parts", **CHANGES), stop_after=stop_after))
    rest = asyncio.run(run_in_process(start(colocated, tmp_path / "parts", **CHANGES)))
    assert [row.step for row in first + rest] == [1, 2, 3, 4, 5, 6]
    assert [row.metrics for row in first + rest] == [row.metrics for row in whole]
    assert digest(tmp_path / "parts", 6) == digest(tmp_path / "whole", 6)


def test_a_run_has_the_critics_metrics_and_state(colocated: Callable[..., Colocated], tmp_path: Path) -> None:
    worker = start(colocated, tmp_path / "run", **CHANGES)
    base = worker.worker.backend.base_digest()
    found = [row.metrics for row in asyncio.run(run_in_process(worker))]
    assert worker.worker.backend.base_digest() == base
    for metrics in found:
        assert 0 <= metrics["critic/clipped_share"] <= 1 and metrics["critic/grad_norm"] > 0
        assert metrics["critic/explained_variance"] <= 1 and metrics["critic/loss"] > 0
    assert found[0]["critic/value"] == 0, "a new critic expects nothing"
    assert found[2]["kl"] == pytest.approx(0, abs=1e-6), "the policy has not learned in the first steps"
    assert [metrics["kl_coefficient"] for metrics in found[:4]] == pytest.approx([0.1, 0.1, 0.1, 0.098])
    peak = found[-1]["learning_rate"]
    assert [metrics["learning_rate"] / peak for metrics in found[:4]] == [0, 0, 0.5, 1], "as its warm-up begins then"
    assert found[-1]["kl"] > 1e-4 and found[0]["grad_norm"] == 0 < found[2]["grad_norm"]
    (folder,) = (tmp_path / "run").glob("checkpoints/*/iter_0000006/trainer_state")
    names = load_file(folder / "state.safetensors").keys()
    adapter = {name.removeprefix("master.") for name in names if name.startswith("master.")}
    kinds = {"", "critic."}
    expected = {
        f"{of}{kind}.{name}" for of in kinds for kind in ("master", "exp_avg", "exp_avg_sq") for name in adapter
    }
    assert names == expected | {f"critic.{kind}.score.weight" for kind in ("master", "exp_avg", "exp_avg_sq")}


def test_ppo_learns_with_one_completion_per_prompt(colocated: Callable[..., Colocated], tmp_path: Path) -> None:
    changes = {"rollout__promptsPerStep": 96, "trainer__learningRate": 2e-2, "algorithm": "{type: ppo}"}
    found = [row.metrics for row in asyncio.run(run_in_process(start(colocated, tmp_path / "run", **changes)))]
    assert found[-1]["reward_mean"] > found[0]["reward_mean"] + 0.05
    assert found[-1]["critic/loss"] < found[0]["critic/loss"]
