"""`lorarl run` with a teacher: an adapter that learned by reward before teaches a new one, which sees no reward.

The teacher is that adapter on the same base, or another model behind `vllm serve`: base and adapter, merged.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from run.command import COMMAND, Ended, kill_with_engine
from run.jobs import Job
from support.vllm_server import NAME, vllm_server

STEPS = 12
HELD_OUT = [{"name": "written", "uri": "file:held_out.jsonl", "every": 6, "reward": {"function": "letters:score"}}]


def teacher_of(reference_job: Job, reference: Ended) -> Path:
    """The adapter that the reference job made."""
    return reference_job.folder / reference.summary["adapter_uri"].removeprefix("file:")


def taught(base: Path, folder: Path, backend: str, teacher: Mapping[str, Any], steps: int) -> Job:
    """A job with a teacher, and without a reward."""
    job = Job(folder, base, backend=backend)
    path = job.folder / "job.yaml"
    manifest = yaml.safe_load(path.read_text())
    del manifest["spec"]["reward"], manifest["spec"]["data"]["eval"]
    path.write_text(yaml.safe_dump(manifest))
    job.change(
        algorithm={"type": "distillation", "distillation": dict(teacher), "groupSize": 4},
        data={"evals": HELD_OUT},
        trainer={"steps": steps},
    )
    return job


def held_out(ended: Ended) -> list[float]:
    """The scores of the evaluations, the first before training."""
    return [row["eval_written/score"] for row in ended.rows if "eval_written/score" in row]


def test_a_student_learns_what_its_teacher_can(
    reference_job: Job, reference: Ended, base: Path, tmp_path: Path
) -> None:
    teacher = {"adapter": f"file:{teacher_of(reference_job, reference)}"}
    ended = taught(base, tmp_path, reference_job.backend, teacher, STEPS).run()
    assert ended.code == 0, ended.stderr
    rows = {row["step"]: row for row in ended.rows}
    scores = held_out(ended)
    assert len(scores) == 3 and scores[-1] - scores[0] > 0.2, scores
    assert rows[STEPS]["teacher/kl"] < 0.5 * rows[1]["teacher/kl"]
    assert rows[1]["teacher/scored_share"] == 1.0 and "reward_mean" not in rows[1]
    assert "KL to the teacher" in ended.stdout
    assert (ended.out / "teacher_kl.png").exists() and not (ended.out / "reward.png").exists()
    assert "Divergence from the teacher" in (ended.out / "report.html").read_text()


@pytest.mark.long
def test_a_model_behind_vllm_serve_teaches_as_its_adapter_does(
    reference_job: Job, reference: Ended, base: Path, tmp_path: Path
) -> None:
    """The merged model is the adapter's equal, so both say the same of the first step's completions."""
    adapter, merged = teacher_of(reference_job, reference), tmp_path / "merged"
    merge = [sys.executable, "-m", "lorarl_trainer.cli", "merge", adapter, "--base", base, "--out", merged]
    subprocess.run(merge, check=True)
    by_adapter = taught(base, tmp_path / "adapter", reference_job.backend, {"adapter": f"file:{adapter}"}, 1).run()
    assert by_adapter.code == 0, by_adapter

    with vllm_server(merged, tmp_path / "vllm.log") as server:
        teacher = {"server": {"url": server.url, "model": NAME}}
        job = taught(base, tmp_path / "server", reference_job.backend, teacher, STEPS)
        trial = subprocess.run(
            [*COMMAND, "job.yaml", "--dry-run"], cwd=job.folder, capture_output=True, text=True, check=False
        )
        assert trial.returncode == 0, trial.stderr
        assert "teacher  the server scored the last token of 4 of 4 prompts" in trial.stdout
        ended = job.run()
    assert ended.code == 0, ended
    scores, rows = held_out(ended), {row["step"]: row for row in ended.rows}
    assert len(scores) == 3 and scores[-1] - scores[0] > 0.2, scores
    assert rows[STEPS]["teacher/kl"] < 0.5 * rows[1]["teacher/kl"]
    assert all(rows[step]["teacher/scored_share"] == 1.0 for step in range(1, STEPS + 1))
    same = next(row for row in by_adapter.rows if row["step"] == 1)
    assert rows[1]["teacher/kl"] == pytest.approx(same["teacher/kl"], abs=1e-4)


@pytest.mark.long
def test_a_teacher_that_dies_stops_the_run_which_resumes_with_it(base: Path, tmp_path: Path) -> None:
    """The base teaches itself, by `vllm serve`, which is killed in the middle of the run."""
    with vllm_server(base, tmp_path / "vllm.log") as server:
        port = int(server.url.split(":")[-1].removesuffix("/v1"))
        settings = {"url": server.url, "model": NAME, "retries": 1}
        job = taught(base, tmp_path / "job", "megatron", {"server": settings}, STEPS)
        run = job.start()
        run.wait_for_step(4)
        kill_with_engine(server.process.pid)
        ended = run.end()
    assert ended.code != 0, ended
    assert "spec.algorithm.distillation.server" in ended.stderr, ended
    assert ended.left_running == []
    with vllm_server(base, tmp_path / "vllm.log", port):
        again = job.run()
    assert again.code == 0, again
    assert again.summary["resumed_from_step"] > 0
    assert all(row["teacher/scored_share"] == 1.0 for row in again.rows if "teacher/scored_share" in row)
