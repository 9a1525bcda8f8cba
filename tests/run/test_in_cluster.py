"""The trainer as in pods, on a real API server: the job's ServiceAccount, and progress in the job's status."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lorarl_trainer.progress import read_rows
from run.command import LAST_SECONDS, Ended, digest
from run.in_cluster import NAMESPACE, InCluster, in_cluster
from run.jobs import NAME, STEPS, Job, spoil_model
from run.ray_nodes import RayNodes, ray_nodes
from support.cluster.audit import account, granted, refused, used
from support.cluster.tools import tools_or_skip

OFTEN = 0.1
"""Seconds between two looks at the job on the API server."""


def test_progress_and_a_drain_reach_the_status(in_cluster: InCluster, nodes: RayNodes) -> None:
    """Also after an outage of the API server, and the loss of the worker's node. The drain publishes a checkpoint."""
    run, hold = in_cluster.start(attempt=1), in_cluster.job.gate
    run.wait_for_step(2)
    hold.touch()  # the run stands still within a step, and everything else has time
    run.wait_until(lambda: in_cluster.status.get("step", 0) >= 2, "step 2 was in the status", every=OFTEN)
    assert in_cluster.status["workers"] == {"attempt": 1, "pods": ["node"]}
    logs = in_cluster.job.checkpoints / "runs" / "0001" / "logs"
    in_cluster.change(progressDeadlineSeconds=6)  # no operator is here to end the run then
    run.wait_until((logs / "stack-0.log").exists, "it was recorded where the run hangs")
    assert "in main_loop" in (logs / "stack-0.log").read_text(), "the worker waits for its next task"
    assert "lorarl_trainer/launch/watchdog.py" in (logs / "stack-driver.log").read_text()
    in_cluster.change(progressDeadlineSeconds=None)
    nodes.kill("node")
    hold.unlink()
    run.wait_for_output("waiting for new workers, which continue from the newest checkpoint")
    lost = run.wait_until(lambda: in_cluster.status["workers"].get("lost"), "the loss was in the status", every=OFTEN)
    assert lost.startswith("a worker's machine or pod is gone")
    hold.touch()
    nodes.add("node-2")
    recovered = {"attempt": 1, "pods": ["node-2"]}
    run.wait_until(lambda: in_cluster.status["workers"] == recovered, "it has a new worker", every=OFTEN)
    assert in_cluster.status["step"] == in_cluster.status["resumedFromStep"] >= 2
    in_cluster.gate.shut()
    done = in_cluster.status["step"]
    hold.unlink()
    run.wait_for_step(done + 2)
    hold.touch()
    assert in_cluster.status["step"] <= done + 1, "the API server cannot be reached"
    in_cluster.gate.open()
    run.wait_until(lambda: in_cluster.status["step"] >= done + 2, "the status caught up", every=OFTEN)

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
    assert (ended.stdout + ended.stderr).count("vLLM agrees with the trainer") == 1, (
        "new workers are held to what the first have shown"
    )
    assert ended.left_running == nodes.workers_left(LAST_SECONDS) == []
    made_of = json.loads(Path(newest.removeprefix("file://"), "lora_adapter/lorarl_metadata.json").read_text())
    assert made_of["manifest"]["spec"]["reward"]["source"]["sha256"] == digest(in_cluster.job.folder / "letters.py")
    record = in_cluster.job.checkpoints / "runs" / "0001"
    assert (record / "report.html").exists()
    log = (record / "logs" / "driver.log").read_text()
    assert "SIGTERM: finishing this step" in log
    assert "Ctrl-C" not in log, "a pod has no keyboard"


def test_the_next_attempt_makes_the_steps_that_the_manifest_says_by_now(
    in_cluster: InCluster, nodes: RayNodes, reference: Ended
) -> None:
    """First more steps, then fewer than it has made, so it ends early. Its worker's pod is drained and replaced.

    The adapter after as many steps is that of a run without a loss.
    """
    before = in_cluster.status
    for marker in in_cluster.run_dir.iterdir():
        marker.unlink()  # another pod
    in_cluster.job.gate.touch()
    run = in_cluster.start(attempt=2)
    status = run.wait_until(
        lambda: (now := in_cluster.status).get("workers", {}).get("attempt") == 2 and now, "it went on", every=OFTEN
    )
    assert "failure" not in status
    assert status["adapter"] == before["adapter"]
    in_cluster.change_steps(STEPS + 100)
    in_cluster.job.gate.unlink()
    run.wait_for_step(before["step"] + 1)
    in_cluster.job.gate.touch()
    environment = {**os.environ, "LORARL_RUN_DIR": str(nodes.run_dir("node-2"))}
    drain = subprocess.Popen([sys.executable, "-m", "lorarl_trainer.cli", "drain"], env=environment)
    run.wait_until(lambda: (nodes.run_dir("node-2") / "drain").exists(), "the worker was asked to leave")
    in_cluster.job.gate.unlink()
    run.wait_for_output("a worker's pod is about to be removed; waiting for new workers")
    assert drain.wait(120) == 0, "its processes have ended"
    in_cluster.job.gate.touch()
    done = read_rows(run.out / "metrics.jsonl")[-1]["step"]
    assert before["step"] < done < STEPS
    nodes.kill("node-2")
    nodes.add("node-3")
    recovered = {"attempt": 2, "pods": ["node-3"]}
    run.wait_until(lambda: in_cluster.status["workers"] == recovered, "it has a new worker", every=OFTEN)
    assert in_cluster.status["resumedFromStep"] == done, "no step is lost"
    in_cluster.job.gate.unlink()
    run.wait_for_step(STEPS + 2)
    in_cluster.change_steps(STEPS + 1)
    ended = run.end()

    assert ended.code == 0, ended
    assert f"spec.trainer.steps is now {STEPS + 100}, was {STEPS}" in ended.stdout
    assert f"spec.trainer.steps is now {STEPS + 1}, was {STEPS + 100}" in ended.stdout
    status = in_cluster.status
    assert status["step"] == ended.rows[-1]["step"] >= STEPS + 2
    assert status["totalSteps"] == status["step"], "no more steps are shown as done than there are"
    assert status["resumedFromStep"] == done
    adapter = in_cluster.job.checkpoints / f"iter_{STEPS:07}" / "lora_adapter" / "adapter_model.safetensors"
    assert digest(adapter) == reference.adapter_digest
    assert status["adapter"]["step"] == status["step"]
    assert status["metrics"]["reward"] == pytest.approx(ended.rows[-1]["reward_mean"], rel=1e-3)
    managers = {
        (entry["manager"], entry.get("subresource"), entry["operation"])
        for entry in in_cluster.stored["metadata"]["managedFields"]
    }
    assert ("lorarl-trainer", "status", "Apply") in managers
    assert (ended.out / "report.html").exists()


def test_a_worker_that_fails_is_told_in_one_line(in_cluster: InCluster, nodes: RayNodes) -> None:
    """The traceback is in the log that the line names."""
    model = in_cluster.job.folder / "garbage"
    shutil.copytree(in_cluster.job.base, model)
    spoil_model(model)
    elsewhere = in_cluster.job.folder / "elsewhere"
    ended = in_cluster.start(3, f"model.uri={model.as_uri()}", f"checkpoint.uri={elsewhere.as_uri()}").end()

    assert ended.code == 1, ended
    failure = in_cluster.status["failure"]
    assert (failure["reason"], failure["attempt"]) == ("WorkerFailed", 3)
    message = failure["message"]
    assert message.startswith("a worker failed: ")
    assert message.endswith(f"; its output is in the log of pod {socket.gethostname()}, container ray-job-submitter")
    assert len(message.splitlines()) == 1
    printed = ended.stdout + ended.stderr
    for of_a_traceback in ("ray::CheckpointingWorker.start() (pid=", '  File "'):
        assert of_a_traceback not in message
        assert of_a_traceback in printed
    [told] = [line for line in ended.stderr.splitlines() if line.startswith("lorarl: ")]  # the others are Ray's
    assert "\x1b" not in message + told
    assert ended.left_running == nodes.workers_left(LAST_SECONDS) == []


def test_a_manifest_that_cannot_be_used_is_reported(in_cluster: InCluster) -> None:
    """Otherwise the operator would start it again and again. The rest of the status stays."""
    before = in_cluster.status
    ended = in_cluster.start(9, "trainer.steps=0").end()
    assert ended.code == 1
    status = in_cluster.status
    failure = status.pop("failure")
    assert (failure["reason"], failure["attempt"]) == ("InvalidInput", 9)
    assert failure["message"].startswith("spec.trainer.steps: got 0, expected ")
    assert status == {key: value for key, value in before.items() if key != "failure"}


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


def test_an_ended_training_makes_more_steps_and_its_job_may_go_meanwhile(in_cluster: InCluster) -> None:
    """The pods of a deleted job do not wait until its status is accepted."""
    before = in_cluster.status
    assert before["step"] >= before["totalSteps"], "it had made all its steps"
    steps = before["step"] + 3
    in_cluster.change_steps(steps)
    in_cluster.job.gate.touch()
    run = in_cluster.start(attempt=4)
    run.wait_until(lambda: in_cluster.status.get("resumedFromStep") == before["step"], "it went on", every=OFTEN)
    assert in_cluster.status["totalSteps"] == steps
    in_cluster.cluster.must("delete", "lrj", NAME)
    in_cluster.cluster.must("delete", "serviceaccount", f"lorarl-{NAME}", "-n", NAMESPACE)
    in_cluster.job.gate.unlink()
    ended = run.end()

    assert ended.code == 0, ended
    assert ended.rows[-1]["step"] == steps
    assert "the job, or its pods' account, is gone, so its last status was not written" in ended.stdout
    assert "did not accept the last status within" not in ended.stdout


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    """A Ray that is running already, as KubeRay gives one to a job."""
    with ray_nodes(tmp_path_factory.mktemp("nodes"), "node") as running:
        yield running


@pytest.fixture(scope="module", name="in_cluster")
def a_job_in_a_cluster(base: Path, nodes: RayNodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InCluster]:
    job = Job(tmp_path_factory.mktemp("job"), base, {"RAY_ADDRESS": nodes.address})
    job.change(checkpoint={"uri": job.checkpoints.parent.as_uri()})  # a node has another working directory
    with tools_or_skip(), in_cluster(job, tmp_path_factory.mktemp("in-cluster")) as running:
        yield running
