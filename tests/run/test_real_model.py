"""The demo's manifest with its real model, for a few steps: it trains, resumes in the same bytes, and stays small."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from run.command import Ended, Running, digest
from support.real_model import EXAMPLE, ROOT, smollm2

STEPS = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the demo's model, data and manifest, for fewer steps and samples."""
    base, folder = smollm2(), tmp_path_factory.mktemp("smollm2")
    (folder / "out/demo").mkdir(parents=True)
    (folder / "out/demo/base").symlink_to(base)
    subprocess.run([sys.executable, EXAMPLE / "make_data.py", "--out", folder / "out/demo"], check=True)
    manifest = yaml.safe_load((ROOT / "examples/smollm2-cpu.yaml").read_text())
    spec = manifest["spec"]
    del spec["data"]["eval"]
    spec["rollout"]["promptsPerStep"] = 4
    spec["trainer"] |= {"steps": STEPS, "learningRate": 2.0e-4}
    spec["checkpoint"] |= {"every": 1, "keep": STEPS}
    (folder / "job.yaml").write_text(yaml.safe_dump(manifest))
    return folder


def run(folder: Path, out: str, checkpoints: str) -> Ended:
    arguments = ["job.yaml", "--out", out, "--set", f"spec.checkpoint.uri=file:{checkpoints}"]
    return Running(arguments, folder, folder / out, os.environ).end()


@pytest.fixture(scope="module")
def whole(folder: Path) -> Ended:
    ended = run(folder, "whole", "checkpoints")
    assert ended.code == 0, ended
    return ended


def test_it_trains_with_the_gate_on_and_plans_its_memory(whole: Ended) -> None:
    assert [row["step"] for row in whole.rows if "loss" in row] == [1, 2]
    assert all(0 < row["mean_abs_logprob_diff"] < 1e-4 for row in whole.rows if "loss" in row)
    assert "memory of each worker:" in whole.stdout
    assert "1,024 tokens of a micro-batch" in whole.stdout


@pytest.mark.long
def test_it_resumes_with_the_same_bytes(folder: Path, whole: Ended) -> None:
    job = folder / "checkpoints/sums"
    shutil.copytree(job / "iter_0000001", folder / "again/sums/iter_0000001")
    resumed = run(folder, "again-out", "again")
    assert resumed.code == 0, resumed
    assert resumed.summary["resumed_from_step"] == 1
    assert resumed.adapter_digest == whole.adapter_digest
    assert resumed.adapter_digest != digest(job / "iter_0000001/lora_adapter/adapter_model.safetensors")
