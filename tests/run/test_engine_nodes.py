"""Separate engines on their own nodes of a Ray cluster, as in pods: one node trains, and others generate.

The nodes are real processes of Ray, each with its own run folder; the engines are vLLM's own servers, and the driver
and the API server are real too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from run.command import LAST_SECONDS, kill_with_engine
from run.engines import CORRECTED, SERVER, requests_of, steps_of, warnings
from run.in_cluster import InCluster, in_cluster
from run.jobs import Job
from run.ray_nodes import RayNodes, ray_nodes
from support.cluster.processes import until
from support.cluster.tools import tools_or_skip

STEPS = 8


@dataclass
class OnNodes:
    """A job in a cluster whose trainer is on the node `trainer`, and whose engines are on others."""

    job: InCluster
    nodes: RayNodes

    def engines_of(self, node: str) -> list[psutil.Process]:
        """The processes of engines that answer, on a node."""
        return [one for one in servers() if one.environ().get("LORARL_POD") == node]


def servers() -> list[psutil.Process]:
    """All processes of engines that this process's raylets have started."""
    found = []
    for one in psutil.Process().children(recursive=True):
        try:
            if one.status() != psutil.STATUS_ZOMBIE and SERVER in " ".join(line := one.cmdline()) and "--port" in line:
                found.append(one)
        except psutil.Error:
            continue
    return found


def job_of(folder: Path, base: Path, **rollout: Any) -> Job:
    """A job with two engines and one trainer, on CPUs, unless `rollout` says otherwise."""
    job = Job(folder, base)
    job.change(
        rollout={"separateEngines": {"count": 2}, "serverTimeoutSeconds": 120.0, **rollout},
        trainer={"steps": STEPS},
        checkpoint={"uri": f"file://{folder}/checkpoints"},
    )
    if rollout.get("maxStaleness"):
        job.change(algorithm=CORRECTED)
    return job


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[RayNodes]:
    with ray_nodes(tmp_path / "nodes", "trainer") as running:
        yield running


@pytest.fixture
def start(base: Path, nodes: RayNodes, tmp_path: Path) -> Iterator[Any]:
    """Make a job of the given options."""
    stack = []

    def make(**rollout: Any) -> OnNodes:
        job = job_of(tmp_path / "job", base, **rollout)
        job.environment |= {"RAY_ADDRESS": nodes.address, "LORARL_CACHE": str(nodes.cache("head"))}
        context = in_cluster(job, tmp_path)
        stack.append(context)
        return OnNodes(context.__enter__(), nodes)

    with tools_or_skip():
        yield make
    for context in stack:
        context.__exit__(None, None, None)


@pytest.mark.long
def test_a_node_that_is_killed_in_mid_step_costs_no_sample(start: Any, base: Path, tmp_path: Path) -> None:
    """With staleness 0, its adapter has the bytes of a run on one machine whose engines were never disturbed."""
    alone = job_of(tmp_path / "alone", base, maxResponseTokens=40)
    expected = alone.run()
    assert expected.code == 0, expected

    here = start(maxResponseTokens=40)
    for name in ("engine-a", "engine-b"):
        here.nodes.add(name, engine=True)
    run = here.job.start(1)
    run.wait_until(lambda: here.job.status.get("step", 0) >= 2, "two steps are done", every=0.1)
    assert [len(here.engines_of(name)) for name in ("engine-a", "engine-b")] == [1, 1]
    assert here.engines_of("trainer") == []
    trained = here.job.status["workers"]
    [engine] = here.engines_of("engine-b")
    run.wait_until(lambda: requests_of(engine) > 0, "it generates")
    here.nodes.kill("engine-b")
    ended = run.end()

    assert ended.code == 0, ended
    assert [row["step"] for row in steps_of(ended)] == list(range(1, STEPS + 1))
    assert warnings(ended).count("lost its pod engine-b (") == 1, ended
    assert here.job.status["workers"] == trained, "the trainer's workers were not started again"
    assert "resumedFromStep" not in here.job.status and "failure" not in here.job.status
    assert ended.adapter_digest == expected.adapter_digest
    until(LAST_SECONDS, "no engine is left", lambda: not servers())


@pytest.mark.long
def test_without_any_engine_the_training_waits_for_one(start: Any) -> None:
    """Its only engine is killed in its pod, which starts another one there, and then with its node."""
    here = start(separateEngines={"count": 1}, maxStaleness=1)
    here.nodes.add("engine-a", engine=True)
    run = here.job.start(1)
    run.wait_until(lambda: here.job.status.get("step", 0) >= 1, "a step is done", every=0.1)
    trained = here.job.status["workers"]
    [killed] = here.engines_of("engine-a")
    kill_with_engine(killed.pid)
    run.wait_for_output("It is started again, for the 1st time in this run")
    done = here.job.status["step"]
    run.wait_until(lambda: here.job.status["step"] > done + 1, "it continues with the engine", every=0.1)
    here.nodes.kill("engine-a")
    run.wait_for_output("lost its pod engine-a")
    until(LAST_SECONDS, "the engine has ended with its node", lambda: not servers())
    here.nodes.add("engine-b", engine=True)
    ended = run.end()

    assert ended.code == 0, ended
    steps = steps_of(ended)
    assert [row["step"] for row in steps] == list(range(1, STEPS + 1))
    assert max(row["staleness/max"] for row in steps) == 1.0
    assert "engine-0 serves again" in warnings(ended)
    assert here.job.status["workers"] == trained and "failure" not in here.job.status
