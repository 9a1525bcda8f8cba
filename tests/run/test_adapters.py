"""`lorarl evaluate` on the folder of a real run, which names the rest: base model, data and reward."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from run.command import Ended
from run.jobs import Job


def test_a_run_s_folder_is_all_that_an_evaluation_needs(reference: Ended, reference_job: Job, tmp_path: Path) -> None:
    """Besides the data, whose path is relative to where one stands. The reward is found beside the manifest."""
    shutil.copy(reference_job.folder / "held_out.jsonl", tmp_path)
    assert reference.summary["manifest_folder"] == str(reference_job.folder)
    command = [sys.executable, "-m", "lorarl_trainer.cli", "evaluate", reference.out, "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["reward"] == "letters:score"
    assert found["rows"] == 1
    assert found["score"]["base"]["mean"] == reference.summary["eval_before"]
    assert found["score"]["adapter"]["mean"] == reference.summary["eval_after"]
