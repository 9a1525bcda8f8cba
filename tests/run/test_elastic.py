"""An elastic job on real Ray nodes: it loses one to kill -9, gets another, and trains each sample once.

The driver, its workers and the API server are real. What it trains is compared with a run that nothing interrupted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from run.command import LAST_SECONDS, Ended
from run.in_cluster import InCluster, in_cluster
from run.jobs import STEPS, Job, published_steps
from run.ray_nodes import RayNodes, ray_nodes
from support.cluster.tools import tools_or_skip

OFTEN = 0.1
"""Seconds between two looks at the job on the API server."""
SOON = {"LORARL_ELASTIC_WAIT_SECONDS": "3", "LORARL_ELASTIC_GROW_SECONDS": "1"}


@pytest.mark.long
def test_a_job_shrinks_when_a_node_is_lost_and_grows_with_another(
    elastic: InCluster, nodes: RayNodes, uninterrupted: Ended
) -> None:
    gate, checkpoints = elastic.job.gate, elastic.job.checkpoints
    run = elastic.start(attempt=1, **SOON)

    def trains_on(*names: str) -> None:
        expected = {"attempt": 1, "pods": list(names)}
        run.wait_until(lambda: elastic.status.get("workers") == expected, f"it trains on {names}", every=OFTEN)

    trains_on("node-1", "node-2")
    run.wait_until(lambda: elastic.status.get("adapter", {}).get("step", 0) >= 2, "a checkpoint", every=OFTEN)
    gate.touch()
    nodes.kill("node-2")
    gate.unlink()
    trains_on("node-1")
    shrank = elastic.status["resumedFromStep"]
    gate.touch()
    nodes.add("node-3")
    gate.unlink()
    trains_on("node-1", "node-3")
    grew = elastic.status["resumedFromStep"]
    ended = run.end()

    assert ended.code == 0, ended
    assert 2 <= shrank < grew < STEPS
    assert "training on 1 of 2 nodes, with the same batch" in ended.summary["warnings"]
    assert elastic.status["step"] == STEPS and "failure" not in elastic.status
    assert published_steps(checkpoints)[-1] == STEPS
    assert nodes.workers_left(LAST_SECONDS) == []
    assert trained(ended) == trained(uninterrupted)
    for row, alone in zip(steps_of(ended), steps_of(uninterrupted), strict=True):
        assert row["loss"] == pytest.approx(alone["loss"], abs=1e-4), row["step"]


@pytest.mark.long
def test_a_job_starts_with_fewer_nodes_than_it_asks_for(elastic: InCluster, nodes: RayNodes) -> None:
    """Three, of which two are there. With minNodes 3 it would wait."""
    elastic.change(cluster={"nodes": 3, "minNodes": 2}, trainer={"steps": STEPS + 2})
    ended = elastic.start(attempt=2, **SOON).end()
    assert ended.code == 0, ended
    assert elastic.status["workers"] == {"attempt": 2, "pods": ["node-1", "node-3"]}
    assert (elastic.status["resumedFromStep"], elastic.status["step"]) == (STEPS, STEPS + 2)


def steps_of(ended: Ended) -> list[dict[str, Any]]:
    rows = [row for row in ended.rows if "loss" in row]
    assert Counter(row["step"] for row in rows) == Counter(range(1, STEPS + 1)), "each step once"
    return rows


def trained(ended: Ended) -> dict[int, list[tuple[Any, ...]]]:
    """Prompts, completions and rewards by step, as the run shows them."""
    lines = [json.loads(line) for line in (ended.out / "samples.jsonl").read_text().splitlines()]
    found: dict[int, list[tuple[Any, ...]]] = {}
    for line in lines:
        found.setdefault(line["step"], []).append((line["prompt"], line["completion"], line["reward"]))
    return found


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    with ray_nodes(tmp_path_factory.mktemp("nodes"), "node-1", "node-2") as running:
        yield running


@pytest.fixture(scope="module")
def uninterrupted(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    ended = job_of(tmp_path_factory.mktemp("alone"), base).start(gated=False).end()
    assert ended.code == 0, ended
    return ended


@pytest.fixture(scope="module")
def elastic(base: Path, nodes: RayNodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InCluster]:
    job = job_of(tmp_path_factory.mktemp("job"), base)
    job.environment |= {"RAY_ADDRESS": nodes.address, "LORARL_CACHE": str(nodes.cache("head"))}
    job.change(cluster={"nodes": 2, "minNodes": 1})
    with tools_or_skip(), in_cluster(job, tmp_path_factory.mktemp("in-cluster")) as cluster:
        yield cluster


def job_of(folder: Path, base: Path) -> Job:
    job = Job(folder, base)
    job.change(checkpoint={"uri": f"file://{folder}/checkpoints", "every": 1})
    return job
