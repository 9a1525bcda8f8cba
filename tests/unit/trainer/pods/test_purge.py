"""`lorarl purge` deletes a job's checkpoints and leaves those of other jobs alone."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lorarl_trainer.checkpoint import CheckpointStore, Owner
from lorarl_trainer.storage.local import LocalStore

MANIFEST = """
apiVersion: lorarl.io/v1alpha1
kind: LoRARLJob
metadata: {{name: tiny, uid: mine}}
spec:
  model: {{uri: hf://org/base}}
  adapter: {{rank: 16, targetModules: [all-linear]}}
  reward: {{type: exact}}
  data: {{train: {{uri: file:rows.jsonl}}}}
  checkpoint: {{uri: {uri}}}
"""


def purge(*words: Path | str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lorarl_trainer.cli", "purge", *(str(word) for word in words)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


def checkpoints_of(uid: str | None, folder: Path) -> Path:
    """Write a folder that a job with this uid has claimed; return the manifest of the job with the uid `mine`."""
    CheckpointStore(LocalStore(folder / "adapters"), "tiny", keep=1, identity={}, owner=Owner("tiny", uid)).claim()
    manifest = folder / "job.yaml"
    manifest.write_text(MANIFEST.format(uri=f"file://{folder}/adapters"))
    return manifest


def test_the_jobs_checkpoints_are_deleted_and_nothing_else(tmp_path: Path) -> None:
    manifest = checkpoints_of("mine", tmp_path)
    adapter = tmp_path / "adapters/tiny/iter_0000001/lora_adapter/adapter_model.safetensors"
    for path in (adapter, tmp_path / "adapters/tiny-2/latest.json", tmp_path / "adapters/tiny/train.jsonl"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    done = purge(manifest, LORARL_PURGE_SUMMARY=str(tmp_path / "summary"))
    uri = f"file://{tmp_path}/adapters/tiny"
    assert done.returncode == 0
    assert done.stderr == f"{uri}: 1 checkpoint and the records of its runs, 0.0 MB in all\n"
    said = f"deleted the checkpoints in file://{tmp_path}/adapters/tiny. It still has what lorarl did not write: "
    assert done.stdout == f"{said}train.jsonl\n"
    assert (tmp_path / "summary").read_text() == f"{said}train.jsonl"
    assert [path.name for path in (tmp_path / "adapters/tiny").iterdir()] == ["train.jsonl"]
    assert (tmp_path / "adapters/tiny-2/latest.json").exists()


def test_purging_twice_is_harmless(tmp_path: Path) -> None:
    manifest = checkpoints_of("mine", tmp_path)
    for said in ("deleted the checkpoints", "nothing to delete"):
        done = purge(manifest)
        assert (done.returncode, done.stdout) == (0, f"{said} in file://{tmp_path}/adapters/tiny\n")
        assert not (tmp_path / "adapters/tiny").exists()


def test_another_name_means_another_jobs_checkpoints(tmp_path: Path) -> None:
    manifest = checkpoints_of("mine", tmp_path)
    done = purge(manifest, "--set", "metadata.name=examples")
    assert done.stdout == f"nothing to delete in file://{tmp_path}/adapters/examples\n"
    assert (tmp_path / "adapters/tiny").exists()


def test_a_runs_folder_means_its_own_job(tmp_path: Path) -> None:
    manifest = checkpoints_of("mine", tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/run_summary.json").write_text(json.dumps({"manifest": manifest.read_text()}))
    manifest.write_text("of another job by now")
    assert purge(tmp_path / "out").stdout == f"deleted the checkpoints in file://{tmp_path}/adapters/tiny\n"


def test_a_run_whose_job_is_not_known_is_named(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/run_summary.json").write_text("{}")
    done = purge(tmp_path / "out")
    assert done.returncode == 1 and done.stderr.startswith(f"lorarl: RUN: got {tmp_path}/out, whose run_summary.json")
    assert "it lacks manifest" in done.stderr and "Traceback" not in done.stderr


def test_on_a_terminal_it_asks_first(tmp_path: Path) -> None:
    manifest = checkpoints_of("mine", tmp_path)
    there = tmp_path / "adapters/tiny"
    for answer, left in (("n", True), ("y", False)):
        keyboard, screen = pty.openpty()
        os.write(keyboard, f"{answer}\n".encode())
        command = [sys.executable, "-m", "lorarl_trainer.cli", "purge", str(manifest)]
        done = subprocess.run(command, stdin=screen, stdout=screen, stderr=subprocess.PIPE, text=True, check=False)
        os.close(screen)
        os.close(keyboard)
        assert f"file://{there}: 0 checkpoints and the records of its runs, 0.0 MB in all\nDelete all of it? [y/N]" in (
            done.stderr
        )
        assert there.exists() is left


def test_without_a_uid_the_name_suffices(tmp_path: Path) -> None:
    """Someone who runs `lorarl purge` on a machine means this job."""
    manifest = checkpoints_of("mine", tmp_path)
    manifest.write_text(manifest.read_text().replace(", uid: mine", ""))
    assert purge(manifest).returncode == 0
    assert not (tmp_path / "adapters/tiny").exists()


@pytest.mark.parametrize("uid", ["another", None])
def test_checkpoints_that_this_job_did_not_claim_stay(uid: str | None, tmp_path: Path) -> None:
    done = purge(checkpoints_of(uid, tmp_path))
    assert done.returncode == 77
    assert f"lorarl: file://{tmp_path}/adapters/tiny has belonged to a different job, tiny, since" in done.stderr
    assert f"uid {uid or 'none'}, this one is mine): nothing was deleted" in done.stderr
    assert (tmp_path / "adapters/tiny/latest.json").exists()


def test_a_folder_that_no_run_claimed_stays(tmp_path: Path) -> None:
    """The job failed before it published, and its folder has the data of others."""
    manifest = checkpoints_of("mine", tmp_path)
    (tmp_path / "adapters/tiny/latest.json").rename(tmp_path / "adapters/tiny/train.jsonl")
    done = purge(manifest)
    assert done.returncode == 77
    assert "has no latest.json, so nothing proves that lorarl wrote it: nothing was deleted" in done.stderr
    assert (tmp_path / "adapters/tiny/train.jsonl").exists()


def test_nothing_is_deleted_after_the_deadline(tmp_path: Path) -> None:
    done = purge(checkpoints_of("mine", tmp_path), LORARL_PURGE_UNTIL="2026-01-01T00:00:00Z")
    assert done.returncode == 77
    assert "the deadline 2026-01-01T00:00:00Z has passed" in done.stderr
    assert (tmp_path / "adapters/tiny/latest.json").exists()


def test_a_deletion_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    manifest = checkpoints_of("mine", tmp_path)
    script = """
import sys, threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

from lorarl_api.load import load_job
from lorarl_trainer.pods.purge import purge
from lorarl_trainer.storage.local import LocalStore

LocalStore.delete = lambda *_: threading.Event().wait()
purge(load_job(Path(sys.argv[1])), datetime.now(UTC) + timedelta(seconds=0.5))
"""
    done = subprocess.run([sys.executable, "-c", script, str(manifest)], timeout=60)
    assert done.returncode == -signal.SIGALRM


def test_an_invalid_manifest_is_reported_without_a_traceback(tmp_path: Path) -> None:
    manifest = tmp_path / "job.yaml"
    manifest.write_text(MANIFEST.format(uri="ftp://host/adapters"))
    done = purge(manifest)
    assert done.returncode == 1
    assert "spec.checkpoint.uri" in done.stderr
    assert "Traceback" not in done.stderr
