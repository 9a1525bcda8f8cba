"""`lorarl run` with a teacher: an adapter that learned by reward before teaches a new one, which sees no reward."""

from __future__ import annotations

from pathlib import Path

import yaml

from run.command import Ended
from run.jobs import Job

STEPS = 12
HELD_OUT = [{"name": "written", "uri": "file:held_out.jsonl", "every": 6, "reward": {"function": "letters:score"}}]


def taught(reference_job: Job, reference: Ended, base: Path, folder: Path, steps: int) -> Job:
    """A job whose teacher is the reference job's adapter."""
    teacher = reference_job.folder / reference.summary["adapter_uri"].removeprefix("file:")
    job = Job(folder, base, backend=reference_job.backend)
    path = job.folder / "job.yaml"
    manifest = yaml.safe_load(path.read_text())
    del manifest["spec"]["reward"], manifest["spec"]["data"]["eval"]
    path.write_text(yaml.safe_dump(manifest))
    job.change(
        algorithm={"type": "distillation", "distillation": {"adapter": f"file:{teacher}"}, "groupSize": 4},
        data={"evals": HELD_OUT},
        trainer={"steps": steps},
    )
    return job


def test_a_student_learns_what_its_teacher_can(
    reference_job: Job, reference: Ended, base: Path, tmp_path: Path
) -> None:
    ended = taught(reference_job, reference, base, tmp_path, STEPS).run()
    assert ended.code == 0, ended.stderr
    rows = {row["step"]: row for row in ended.rows}
    scores = [row["eval_written/score"] for row in ended.rows if "eval_written/score" in row]
    assert len(scores) == 3 and scores[-1] - scores[0] > 0.2, scores
    assert rows[STEPS]["teacher/kl"] < 0.5 * rows[1]["teacher/kl"]
    assert rows[1]["teacher/scored_share"] == 1.0 and "reward_mean" not in rows[1]
    assert "KL to the teacher" in ended.stdout
    assert (ended.out / "teacher_kl.png").exists() and not (ended.out / "reward.png").exists()
    assert "Divergence from the teacher" in (ended.out / "report.html").read_text()
