"""lorarl's side: `lorarl run` on a manifest, as a user starts it. Every figure is from the run's metrics.jsonl."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.devices.base import Gpu
from lorarl_trainer.models.model_sizes import shape_of
from lorarl_trainer.planning.execution import ExecutionPlan
from lorarl_trainer.planning.usual import decide
from lorarl_trainer.progress import METRICS, read_rows, read_summary
from lorarl_trainer.storage.downloads import read_model_config
from side_by_side.work import Work


def manifest(model: Path, out: Path, work: Work, gpus: int, steps: int) -> dict[str, Any]:
    """Return the job. A manifest is YAML, and JSON is YAML. Memory is only set where the work says so."""
    share = {} if work.vllm_share is None else {"gpuMemoryFraction": work.vllm_share}
    taught = {"algorithm": {"type": "sft"}}
    rewarded = {"algorithm": {"type": "grpo", "groupSize": work.group}}
    rewarded["reward"] = {"function": "side_by_side.work:score"}
    return {
        "apiVersion": "lorarl.io/v1alpha1",
        "kind": "LoRARLJob",
        "metadata": {"name": "bench"},
        "spec": {
            "model": {"uri": f"file://{model}"},
            "adapter": {"rank": work.rank, "alpha": work.alpha, "targetModules": ["all-linear"]},
            **(taught if work.supervised else rewarded),
            "data": {"train": {"uri": f"file://{model}/{work.prompts_file}"}, "chatTemplate": False},
            "rollout": {
                "promptsPerStep": work.prompts,
                "maxPromptTokens": work.prompt_tokens,
                "maxResponseTokens": work.response_tokens,
                "temperature": work.temperature,
                **share,
            },
            "trainer": {"steps": steps, "learningRate": work.learning_rate},
            # Only the last step makes a checkpoint, whose time is left out.
            "checkpoint": {"uri": f"file://{out}/checkpoints", "every": 100_000, "resume": "Never"},
            "cluster": {"gpusPerNode": gpus},
        },
    }


def planned(model: Path, work: Work, gpu: Gpu | None, *overrides: str) -> tuple[LoRARLJobSpec, ExecutionPlan]:
    """Return the job of `manifest` on one GPU, with some of its fields changed, and how a worker would run it."""
    spec = load_job(json.dumps(manifest(model, model, work, gpus=1, steps=1)), overrides).spec
    return spec, decide(spec, shape_of(read_model_config(model)), gpu)


def command(folder: Path, job: Mapping[str, Any], overrides: Sequence[str]) -> list[str]:
    """Write the manifest into `folder` and return the command that runs it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.yaml").write_text(json.dumps(job, indent=1))
    settings = [part for override in overrides for part in ("--set", override)]
    return [
        sys.executable,
        "-m",
        "lorarl_trainer.cli",
        "run",
        str(folder / "job.yaml"),
        "--out",
        str(folder / "run"),
        *settings,
    ]


def work_of(folder: Path, work: Work) -> Work:
    """Return the work as it was run, after overrides of the manifest."""
    spec = load_job(read_summary(folder / "run")["manifest"]).spec
    return replace(
        work,
        prompts=spec.rollout.prompts_per_step,
        group=spec.algorithm.group_size or work.group,
        response_tokens=spec.rollout.max_response_tokens,
        rank=spec.adapter.rank,
        alpha=spec.adapter.alpha,
    )


def steps_of(folder: Path, work: Work) -> list[dict[str, float]]:
    """Return the steps of a run: seconds in all and by phase, tokens in all and of completions."""
    steps = []
    for row in read_rows(folder / "run" / METRICS):
        if "seconds" in row:
            phases = {phase: seconds for phase, seconds in row["seconds"].items() if phase != "checkpoint"}
            # Answers that are in the data are all of one length.
            response_tokens = row.get("response_tokens_mean", work.response_tokens) * work.completions
            counted = {"tokens": row["tokens"], "response_tokens": response_tokens}
            # A step that is generated ahead has no samples by its own adapter.
            if (difference := row.get("mean_abs_logprob_diff")) is not None:
                counted["logprob_difference"] = difference
            counted |= {name: value for name, value in row.items() if name.startswith("engine/")}
            if (retries := row.get("gpu_memory/retries")) is not None:
                counted["memory_retries"] = retries
            steps.append({"seconds": sum(phases.values()), **counted, **phases})
    return steps


def log_tail(folder: Path, lines: int = 60) -> str:
    """Return the end of the workers' logs, for a run that failed."""
    logs = sorted((folder / "run").rglob("worker-*.log"))
    return "\n".join(f"--- {log}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) for log in logs)


def commit(root: Path) -> str | None:
    """Return the commit that is measured, or None outside a repository."""
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or None
