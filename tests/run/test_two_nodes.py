"""Two nodes of a Ray cluster train data parallel: as one would, each with its own model, and through a loss.

The nodes are real processes of Ray with their own caches; the driver, the API server and the S3 server are real too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from safetensors.numpy import load_file

from lorarl_trainer.storage import open_store
from run.command import LAST_SECONDS
from run.in_cluster import InCluster, in_cluster
from run.jobs import NAME, STEPS, Job, manifest, published_steps
from run.ray_nodes import RayNodes, ray_nodes
from support.cluster.tools import tools_or_skip
from support.fault_proxy import FaultProxy, fault_proxy
from support.s3_server import S3Server, s3_server

BUCKET = "team"
OFTEN = 0.1
"""Seconds between two looks at the job on the API server."""
TOLERANCE = 1e-5
FIRST_MOMENT_SHARE = 0.1
"""AdamW's first moment after one update is 1 - beta1 of the gradient."""


@dataclass
class OnTwoNodes:
    """The job, its nodes and its store."""

    job: InCluster
    nodes: RayNodes
    proxy: FaultProxy
    checkpoints: Path

    def requests(self, method: str, path: str) -> int:
        """How many requests the store got for exactly this object."""
        return sum(
            1
            for asked, found in self.proxy.requests
            if asked == method and found.partition("?")[0] == f"/{BUCKET}/{path}"
        )


def test_two_nodes_find_the_gradient_and_the_adapter_that_one_finds(
    base: Path, nodes: RayNodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a recorded batch."""
    paths, found = [], {}
    for count in (1, 2):
        job = manifest(base)
        job["spec"]["cluster"] = {"nodes": count}
        job["spec"]["checkpoint"]["uri"] = f"file://{tmp_path}/{count}"
        path = tmp_path / f"{count}.yaml"
        path.write_text(yaml.safe_dump(job))
        paths.append(path)
    command = [sys.executable, Path(__file__).with_name("recorded_batch.py"), tmp_path / "batch", *paths]
    environment = {**os.environ, "RAY_ADDRESS": nodes.address}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr[-3000:]
    with capsys.disabled():
        print("", *ran.stdout.splitlines(), sep="\n  ", end="")
    for count in (1, 2):
        folder = tmp_path / str(count) / NAME / "iter_0000001"
        found[count] = (
            load_file(folder / "lora_adapter/adapter_model.safetensors"),
            load_file(folder / "trainer_state/state.safetensors"),
        )
    (one, one_state), (two, two_state) = found.values()
    moments = [name for name in one_state if name.startswith("exp_avg.")]
    gradient = max(abs(one_state[name] - two_state[name]).max() for name in moments) / FIRST_MOMENT_SHARE
    adapter = max(abs(one[name] - two[name]).max() for name in one)
    largest = max(abs(one_state[name]).max() for name in moments) / FIRST_MOMENT_SHARE
    with capsys.disabled():
        print(f"\n  largest difference: gradient {gradient:.1e} (of {largest:.1e}), updated adapter {adapter:.1e}")
    assert one.keys() == two.keys() and one_state.keys() == two_state.keys()
    assert largest > 100 * TOLERANCE, "there was something to learn"
    assert gradient < TOLERANCE
    assert adapter < TOLERANCE


@pytest.mark.long
def test_each_node_fetches_the_model_once_and_a_lost_node_is_replaced(on_two_nodes: OnTwoNodes) -> None:
    """The other node and the driver stay."""
    nodes, job = on_two_nodes.nodes, on_two_nodes.job
    run = job.start(attempt=1)
    run.wait_until(lambda: job.status.get("adapter", {}).get("step", 0) >= 2, "a checkpoint was published", every=OFTEN)
    assert [len(nodes.models(name)) for name in ("node-1", "node-2")] == [1, 1]
    assert on_two_nodes.requests("GET", "model/model.safetensors") == 2, "one a node, none for the driver"
    assert on_two_nodes.requests("GET", "train.jsonl") == 1
    assert job.status["workers"] == {"attempt": 1, "pods": ["node-1", "node-2"]}
    job.job.gate.touch()
    nodes.kill("node-2")
    job.job.gate.unlink()
    lost = run.wait_until(lambda: job.status["workers"].get("lost"), "the loss was in the status", every=OFTEN)
    before = job.status["adapter"]["step"]
    on_two_nodes.proxy.requests.clear()
    nodes.add("node-3")
    ended = run.end()

    assert ended.code == 0, ended
    assert lost.startswith("a worker's machine or pod is gone"), ended
    assert job.status["workers"] == {"attempt": 1, "pods": ["node-1", "node-3"]}
    assert job.status["step"] == STEPS
    assert before <= job.status["resumedFromStep"] < STEPS
    assert "failure" not in job.status
    assert nodes.workers_left(LAST_SECONDS) == []
    assert on_two_nodes.requests("GET", "model/model.safetensors") == 1, "the node that stayed has it"
    assert on_two_nodes.requests("GET", "train.jsonl") == 0, "and the driver has its rows"
    assert published_steps(on_two_nodes.checkpoints)[-1] == STEPS
    written = Counter(
        path.partition("?")[0] for method, path in on_two_nodes.proxy.requests if method == "PUT" and "/iter_" in path
    )
    cards = {path: count for path, count in written.items() if path.endswith("/README.md")}
    assert written.keys() > cards.keys() > set()
    assert {written[path] for path in written.keys() - cards.keys()} == {1}, "one worker publishes, and only once"
    assert set(cards.values()) <= {1, 2}, "the step's evaluation completes the card"


@pytest.mark.long
def test_what_is_wrong_with_the_store_reaches_the_status(on_two_nodes: OnTwoNodes) -> None:
    """With the field and a hint."""
    on_two_nodes.proxy.answer(403, times=1_000_000, method="GET", path="model")
    for marker in on_two_nodes.job.run_dir.iterdir():
        marker.unlink()  # another pod
    ended = on_two_nodes.job.start(attempt=2).end()
    on_two_nodes.proxy.heal()

    assert ended.code == 1, ended
    failure = on_two_nodes.job.status["failure"]
    assert (failure["reason"], failure["attempt"]) == ("StorageFailed", 2)
    assert failure["message"].startswith(f"spec.model.uri: s3://{BUCKET}/model: cannot list: the store said: 403")
    assert "Check the Secret's keys" in failure["message"]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    with ray_nodes(tmp_path_factory.mktemp("nodes"), "node-1", "node-2") as running:
        yield running


@pytest.fixture(scope="module")
def store(base: Path) -> Iterator[tuple[S3Server, FaultProxy]]:
    """The base model in a bucket."""
    with tools_or_skip(), s3_server() as server, fault_proxy(server.url) as proxy:
        server.make_bucket(BUCKET)
        bucket = open_store(f"s3://{BUCKET}", server.secret())
        for file in base.iterdir():
            bucket.put(f"model/{file.name}", file.read_bytes())
        yield server, proxy


@pytest.fixture(scope="module")
def on_two_nodes(
    base: Path, nodes: RayNodes, store: tuple[S3Server, FaultProxy], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OnTwoNodes]:
    server, proxy = store
    job = Job(
        tmp_path_factory.mktemp("job"), base, {"RAY_ADDRESS": nodes.address, "LORARL_CACHE": str(nodes.cache("head"))}
    )
    secret = "s3-keys"
    job.write_secret(secret, server.secret(proxy.url))
    nodes.secrets.symlink_to(job.folder / "secrets")
    for name in ("train.jsonl", "held_out.jsonl"):
        open_store(f"s3://{BUCKET}", server.secret()).put(name, (job.folder / name).read_bytes())
    job.change(
        cluster={"nodes": 2},
        model={"uri": f"s3://{BUCKET}/model", "credentialsSecret": secret},
        data={
            "credentialsSecret": secret,
            "train": {"uri": f"s3://{BUCKET}/train.jsonl"},
            "eval": {"uri": f"s3://{BUCKET}/held_out.jsonl", "every": 5},
        },
        checkpoint={"uri": f"s3://{BUCKET}/adapters", "every": 1, "credentialsSecret": secret},
    )
    with tools_or_skip(), in_cluster(job, tmp_path_factory.mktemp("in-cluster")) as cluster:
        yield OnTwoNodes(cluster, nodes, proxy, server.root / BUCKET / "adapters" / NAME)
