"""The node leaves nothing, a second start is harmless, and the next start cleans up after one that was killed."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cluster import hello
from cluster.skipping import up_or_skip
from cluster.traces import processes_of, still_alive, traces
from node import lifecycle
from node.errors import NotReadyError
from node.node import Node
from node.settings import REPOSITORY, Settings
from support.cluster.processes import find

UP_SECONDS = 30.0
KILLS = 5


@pytest.fixture(autouse=True)
def gone(spare: Settings) -> None:
    """Each test begins without a node."""
    if os.geteuid() == 0:
        lifecycle.down(spare, print, everything=False)


def test_it_comes_and_leaves_nothing(spare: Settings, tmp_path: Path) -> None:
    before = traces() if os.geteuid() == 0 else {}
    started = time.monotonic()
    node = up_or_skip(spare)
    took = time.monotonic() - started
    hello.load(node)
    node.kubectl("apply", "-f", "-", stdin=json.dumps(hello.pod("left")))
    node.kubectl("wait", "--for=condition=Ready", "pod/left", "--timeout=30s")
    alive = processes_of(node)
    assert len(alive) > len(node.running())
    # A second start changes nothing, and says so.
    said: list[str] = []
    running = node.running()
    again = time.monotonic()
    lifecycle.up(spare, said.append)
    again = time.monotonic() - again
    assert said == ["the node is up already"]
    assert node.running() == running
    # Not even from another checkout, which gets its own kubeconfig.
    elsewhere = dataclasses.replace(spare, out=tmp_path)
    assert lifecycle.up(elsewhere, print).running() == running
    assert elsewhere.kubeconfig.read_text() == spare.kubeconfig.read_text()

    removed = time.monotonic()
    lifecycle.down(spare, print, everything=False)
    print(f"up {took:.1f} s, up again {again:.2f} s, down {time.monotonic() - removed:.1f} s, {len(alive)} processes")
    assert not still_alive(alive)
    after = traces()
    left = {kind: after[kind] - before[kind] for kind in before} | {
        "lost": set().union(*(before[kind] - after[kind] for kind in before))
    }
    assert left == {kind: set() for kind in left} | {"files": {str(spare.data)}}, "only images may stay"
    assert took < UP_SECONDS
    lifecycle.down(spare, print, everything=True)
    assert not spare.data.exists()


def test_killed_half_way_the_next_start_cleans_up(spare: Settings) -> None:
    started = time.monotonic()
    up_or_skip(spare)
    up_seconds = time.monotonic() - started
    started = time.monotonic()
    lifecycle.down(spare, print, everything=False)
    down_seconds = time.monotonic() - started
    before = traces()
    seed = random.randrange(1_000_000)
    moments = random.Random(seed)
    print(f"seed {seed}")
    alive: dict[int, str] = {}
    kills = 0
    while kills < KILLS:
        if _killed_at(moments.uniform(0, up_seconds), "up", spare):
            kills += 1
            alive |= processes_of(Node(spare))
            print(f"{len(alive)} processes seen that were left behind")
        else:  # it was quicker this time
            lifecycle.down(spare, print, everything=False)
    node = lifecycle.up(spare, print)
    assert set(node.running()) == set(node.programs)
    assert not still_alive(alive)

    alive = processes_of(node)
    _killed_at(moments.uniform(0, down_seconds), "down", spare)
    again = lifecycle.up(spare, print)
    assert set(again.running()) == set(node.running())
    if again.init != node.init:  # else it was killed before it had begun
        assert not still_alive(alive)
    lifecycle.down(spare, print, everything=False)
    assert traces() == before


def _killed_at(moment: float, command: str, settings: Settings) -> bool:
    """Kill the tool (-9) after so many seconds; whether it was still at it."""
    with subprocess.Popen(
        [sys.executable, "-m", "node", command], env=_environment(settings), start_new_session=True
    ) as tool:
        try:
            tool.wait(timeout=moment)
        except subprocess.TimeoutExpired:
            os.killpg(tool.pid, signal.SIGKILL)
            print(f"{command} killed after {moment:.2f} s")
            return True
    assert tool.returncode == 0
    return False


def test_a_program_that_was_stopped_is_started_again(spare: Settings) -> None:
    node = up_or_skip(spare)
    before = node.running()
    node.stop("kube-apiserver", signal.SIGKILL)
    assert "kube-apiserver" not in node.running()
    lifecycle.up(spare, print)
    after = node.running()
    assert after.keys() == before.keys()
    assert {name for name in after if after[name] != before[name]} >= {"kube-apiserver"}
    assert node.get("/readyz") == "ok"


def test_the_builder_grows_into_a_node_from_whichever_checkout(spare: Settings, tmp_path: Path) -> None:
    try:
        builder = lifecycle.builder(spare, print)
    except NotReadyError as reason:
        pytest.skip(str(reason))
    node = Node(spare)
    before = node.running()
    assert set(before) == {"containerd", "buildkitd"}
    workers = subprocess.run(
        [find("buildctl"), f"--addr=unix://{builder.buildkit_socket}", "debug", "workers"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "linux/" in workers.stdout
    lifecycle.up(dataclasses.replace(spare, out=tmp_path / "another"), print)
    assert before.items() <= node.running().items()


def _environment(settings: Settings) -> dict[str, str]:
    names = {"NAME": settings.name, "OUT": settings.out, "SUBNET": settings.subnet, "FREE_GB": settings.free_gb}
    folders = f"{REPOSITORY}/tools:{REPOSITORY}/tests"
    return {
        **os.environ,
        "PYTHONPATH": folders,
        **{f"LORARL_CLUSTER_{key}": str(value) for key, value in names.items()},
    }
