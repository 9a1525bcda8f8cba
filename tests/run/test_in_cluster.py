"""The trainer as in pods, on a real API server: the job's ServiceAccount, and progress in the job's status."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from run.in_cluster import NAMESPACE, InCluster, in_cluster
from run.jobs import NAME, STEPS, Job
from support.cluster.audit import account, granted, refused, used
from support.cluster.tools import tools_or_skip


def test_progress_reaches_the_status_also_after_the_api_server_was_away_and_a_drain_publishes_a_checkpoint(
    in_cluster: InCluster,
) -> None:
    run, hold = in_cluster.start(attempt=1), in_cluster.job.gate
    run.wait_for_step(2)
    hold.touch()  # while the run stands still within a step, everything else has time
    run.wait_until(lambda: in_cluster.status.get("step", 0) >= 2, "the status told of step 2")
    in_cluster.gate.shut()
    done = in_cluster.status["step"]
    hold.unlink()
    run.wait_for_step(done + 2)
    hold.touch()
    assert in_cluster.status["step"] <= done + 1, "the API server cannot be reached"
    in_cluster.gate.open()
    run.wait_until(lambda: in_cluster.status["step"] >= done + 2, "the status caught up")

    environment = {**os.environ, "LORARL_RUN_DIR": str(in_cluster.run_dir)}
    drain = subprocess.Popen([sys.executable, "-m", "lorarl_trainer.cli", "drain"], env=environment)
    run.wait_for_output("SIGTERM: finishing this step")
    hold.unlink()
    assert drain.wait(120) == 0
    ended = run.end()

    assert ended.code == 75, ended
    status = in_cluster.status
    assert status["step"] == ended.rows[-1]["step"] < STEPS
    assert status["totalSteps"] == STEPS
    assert status["failure"]["reason"] == "Interrupted"
    newest = ended.adapter_uri.removesuffix("/lora_adapter")
    assert status["failure"]["message"] == f"it was asked to end; its newest checkpoint is {newest}"
    assert status["failure"]["attempt"] == 1
    assert status["adapter"]["uri"] == ended.adapter_uri
    assert status["adapter"]["sha256"] == ended.adapter_digest
    assert status["adapter"]["step"] == status["step"]
    assert ended.left_running == []
    assert not (ended.out / "report.html").exists(), "nobody could read it, and the next attempt waits for this pod"


def test_the_next_attempt_goes_on_and_makes_as_many_steps_as_the_manifest_says_by_now(in_cluster: InCluster) -> None:
    before = in_cluster.status
    for marker in in_cluster.run_dir.iterdir():
        marker.unlink()  # another pod
    in_cluster.job.gate.touch()
    run = in_cluster.start(attempt=2)
    status = run.wait_until(lambda: (now := in_cluster.status).get("resumedFromStep") and now, "it went on")
    assert "failure" not in status
    assert status["adapter"] == before["adapter"]
    in_cluster.change_steps(STEPS + 3)
    in_cluster.job.gate.unlink()
    ended = run.end()

    assert ended.code == 0, ended
    assert f"spec.trainer.steps is now {STEPS + 3}, was {STEPS}" in ended.stdout
    status = in_cluster.status
    assert (status["step"], status["totalSteps"], status["resumedFromStep"]) == (STEPS + 3, STEPS + 3, before["step"])
    assert status["adapter"]["step"] == STEPS + 3
    assert status["metrics"]["reward"] == pytest.approx(ended.rows[-1]["reward_mean"], rel=1e-3)
    managers = {
        (entry["manager"], entry.get("subresource"), entry["operation"])
        for entry in in_cluster.stored["metadata"]["managedFields"]
    }
    assert ("lorarl-trainer", "status", "Apply") in managers
    assert (ended.out / "report.html").exists()


def test_a_training_that_had_ended_goes_on_for_more_steps_and_ends_early_for_fewer(in_cluster: InCluster) -> None:
    before = in_cluster.status
    assert before["step"] == before["totalSteps"], "it had made all its steps"
    in_cluster.change_steps(before["step"] + 100)
    run = in_cluster.start(attempt=3)
    run.wait_for_step(before["step"] + 2)
    in_cluster.change_steps(before["step"] + 1)
    ended = run.end()

    assert ended.code == 0, ended
    status = in_cluster.status
    assert status["resumedFromStep"] == before["step"]
    assert status["step"] == ended.rows[-1]["step"] >= before["step"] + 2
    assert status["totalSteps"] == before["step"] + 1


def test_a_worker_that_fails_is_told_in_one_line_and_its_traceback_is_in_the_log_that_the_line_names(
    in_cluster: InCluster,
) -> None:
    model = in_cluster.job.folder / "garbage"
    shutil.copytree(in_cluster.job.base, model)
    (model / "model.safetensors").write_bytes(b"garbage")
    ended = in_cluster.start(4, "model.uri=file:garbage", "checkpoint.uri=file:elsewhere").end()

    assert ended.code == 1, ended
    failure = in_cluster.status["failure"]
    assert (failure["reason"], failure["attempt"]) == ("WorkerFailed", 4)
    message = failure["message"]
    assert message.startswith("a worker failed: ")
    assert message.endswith(f"; its output is in the log of pod {socket.gethostname()}, container ray-job-submitter")
    assert len(message.splitlines()) == 1
    printed = ended.stdout + ended.stderr
    for of_a_traceback in ("ray::CheckpointingWorker.start() (pid=", '  File "'):
        assert of_a_traceback not in message
        assert of_a_traceback in printed
    assert "\x1b" not in message + ended.stderr
    assert ended.left_running == []


def test_the_trainer_s_rights_end_at_its_own_job_s_status(in_cluster: InCluster) -> None:
    def may(verb: str, what: str, *more: str) -> bool:
        account = f"system:serviceaccount:{NAMESPACE}:lorarl-{NAME}"
        return in_cluster.cluster.kubectl("auth", "can-i", verb, what, *more, f"--as={account}").stdout.strip() == "yes"

    assert may("patch", f"lorarljobs/{NAME}", "--subresource=status")
    assert may("get", f"lorarljobs/{NAME}", "--subresource=status")
    assert not may("patch", "lorarljobs/other", "--subresource=status")
    assert not may("patch", f"lorarljobs/{NAME}")
    assert not may("get", "secrets")
    assert not may("create", "pods")


def test_the_trainer_uses_every_right_that_it_has(in_cluster: InCluster) -> None:
    log, user = in_cluster.cluster.audit_log, account(NAMESPACE, f"lorarl-{NAME}")
    role = in_cluster.cluster.api.get("Role", f"lorarl-{NAME}", NAMESPACE)
    assert role is not None
    assert used(log, user) == granted(role["rules"])
    assert refused(log, user) == []


def test_the_pods_of_a_deleted_job_do_not_wait_for_its_status_to_be_taken(in_cluster: InCluster) -> None:
    done = in_cluster.status["step"]
    in_cluster.change_steps(done + 100)
    run = in_cluster.start(attempt=5)
    run.wait_for_step(done + 1)
    in_cluster.cluster.must("delete", "lrj", NAME)
    in_cluster.cluster.must("delete", "serviceaccount", f"lorarl-{NAME}", "-n", NAMESPACE)
    in_cluster.change_steps(done + 2)
    ended = run.end()

    assert ended.code == 0, ended
    assert "the job, or its pods' account, is gone, so its last status was not written" in ended.stdout
    assert "did not accept the last status within" not in ended.stdout


@pytest.fixture(scope="module", name="in_cluster")
def a_job_in_a_cluster(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InCluster]:
    with (
        tools_or_skip(),
        in_cluster(Job(tmp_path_factory.mktemp("job"), base), tmp_path_factory.mktemp("in-cluster")) as job,
    ):
        yield job
