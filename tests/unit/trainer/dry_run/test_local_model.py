"""`lorarl validate` and `render` judge base models that are on this machine: the commands, in their own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from unit.trainer.planning.shapes import SHAPES, config

MANIFEST = """
apiVersion: lorarl.io/v1alpha1
kind: LoRARLJob
metadata: {{name: job}}
spec:
  model: {{uri: "{uri}"}}
  adapter: {{rank: 32, targetModules: {targets}}}
  reward: {{type: exact}}
  data: {{train: {{uri: "file:train.jsonl"}}}}
  checkpoint: {{uri: "file:checkpoints"}}
  cluster: {{gpusPerNode: {gpus}}}
"""


def validate(
    folder: Path,
    model: dict[str, Any] | None,
    *options: str,
    gpus: int = 0,
    targets: str = "[all-linear]",
    name: str = "validate",
    uri: str = "file:base",
) -> tuple[int, str, str]:
    """Run the command on a manifest beside such a model; return its exit code, what it printed, and errors."""
    if model is not None:
        (folder / "base").mkdir()
        (folder / "base" / "config.json").write_text(json.dumps(model))
    (folder / "job.yaml").write_text(MANIFEST.format(uri=uri, gpus=gpus, targets=targets))
    program = "from lorarl_trainer.cli import main; import sys; main(sys.argv[1:])"
    command = [sys.executable, "-X", "importtime", "-c", program, name, "job.yaml", *options]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=without_gpus())
    return ran.returncode, ran.stdout, ran.stderr


def without_gpus() -> dict[str, str]:
    """An environment where no tool names the machine's GPUs."""
    return {**os.environ, "PATH": "/nowhere"}


def test_a_tested_family_is_named_without_what_takes_seconds_to_import(tmp_path: Path) -> None:
    code, out, err = validate(tmp_path, SHAPES["0.5B"])
    assert (code, out) == (0, "job.yaml: ok; the base model is of a tested family (Qwen2, Qwen2.5)\n")
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in err.splitlines()}
    assert "lorarl_trainer" in imported
    assert imported.isdisjoint({"torch", "transformers", "ray", "vllm", "megatron", "huggingface_hub"})


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ({**config(), "num_experts": 8}, {}, "spec.model.uri: got a config.json with num_experts 8: a mixture of expe"),
        (SHAPES["0.5B"], {"targets": "[qproj]"}, "spec.adapter.targetModules: got 'qproj', expected a linear layer"),
        (SHAPES["7B"], {"gpus": 1}, "spec: got a job that needs "),
        ({"model_type": "llama"}, {}, "spec.model.uri: got a config.json with architectures []"),
    ],
)
def test_a_model_that_cannot_be_trained_is_a_fault_of_the_manifest(
    tmp_path: Path, model: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    code, out, _ = validate(tmp_path, model, "--gpu-memory", "24", **options)
    assert code == 1
    assert out.startswith(f"job.yaml: {message}")


def test_without_a_gpu_here_nothing_is_said_of_memory(tmp_path: Path) -> None:
    code, out, _ = validate(tmp_path, SHAPES["7B"], gpus=1)
    assert (code, out) == (0, "job.yaml: ok; the base model is of a tested family (Qwen2, Qwen2.5)\n")


def test_a_model_that_is_elsewhere_is_judged_later(tmp_path: Path) -> None:
    code, out, _ = validate(tmp_path, None)
    assert code == 0
    assert out == "job.yaml: ok; file:base is not on this machine, so the model is judged when the job starts\n"


def test_memory_that_was_not_planned_is_said(tmp_path: Path) -> None:
    """`ok` alone would look as if the job fitted."""
    code, out, _ = validate(tmp_path, None, "--gpu-memory", "16", gpus=1, uri="hf://Qwen/Qwen2.5-7B-Instruct")
    assert code == 0 and "--gpu-memory planned nothing: hf://Qwen/Qwen2.5-7B-Instruct is no folder on this" in out
    code, out, _ = validate(tmp_path, SHAPES["7B"], "--gpu-memory", "16")
    assert code == 0 and out.endswith("; --gpu-memory was not used: spec.cluster.gpusPerNode is 0\n")


def test_render_prints_the_plan_beside_the_manifest(tmp_path: Path) -> None:
    code, out, err = validate(tmp_path, SHAPES["7B"], "--gpu-memory", "141", gpus=1, name="render")
    assert code == 0 and yaml.safe_load(out)["spec"]["cluster"] == {"gpusPerNode": 1}
    table = err.partition("\nplan for each GPU:\n")[2]
    assert "trainer.tokensPerMicroBatch" in table and "base model" in table and "141.0 in all" in table
    code, out, err = validate(tmp_path, None, gpus=1, name="render")
    assert "job.yaml: the base model is of a tested family (Qwen2, Qwen2.5)\n" in err, "no GPU is here, none was named"


def test_render_prints_a_model_that_cannot_be_trained(tmp_path: Path) -> None:
    code, out, err = validate(tmp_path, SHAPES["7B"], "--gpu-memory", "24", gpus=1, name="render")
    assert code == 1 and yaml.safe_load(out)
    assert "\njob.yaml: spec: got a job that needs " in err
