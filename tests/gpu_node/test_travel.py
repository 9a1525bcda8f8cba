"""A node is packed, and brought up elsewhere with only what it brought. A job trains with that machine's Python.

Elsewhere is a mount namespace of this machine, in which the programs that a bare machine lacks are hidden.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpu_node import packing, stack
from gpu_node.places import PARTS, PREFIX
from node import lifecycle, prerequisites
from node.base_image import BaseImageError
from node.errors import NotReadyError
from node.installation import apply, make_room
from node.node import Node
from node.settings import from_environment
from support.cluster.kubectl import RealCluster, real_cluster
from support.cluster.processes import ToolMissingError
from support.real_cluster.example import ADDITION, ROOT
from support.real_cluster.store import bucket_of
from support.real_cluster.watched import watched

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

TEAM = "travellers"
JOB = "addition"
LONGEST_SECONDS = 300.0
LARGEST_PART_BYTES = 52 * 2**20
"""With put.sh."""
HIDDEN = (*packing.MACHINE_PROGRAMS, "patchelf")


@dataclass(frozen=True)
class Elsewhere:
    """The machine that the node came to.

    Attributes:
        variables: Of its environment.
        parts: What was sent there.
    """

    variables: dict[str, str]
    parts: list[Path]

    def run(self, *command: str) -> str:
        """Run a command there; what it printed."""
        folder = prerequisites.cni_folder()
        paths = [path for name in HIDDEN if (path := shutil.which(name, path=prerequisites.search_path()))]
        hide = [f"mount --bind /dev/null {Path(path).resolve()}" for path in paths] + [f"mount -t tmpfs tmpfs {folder}"]
        script = " && ".join([*hide, f'. {ROOT}/tools/gpu_node/env.sh && "$@"'])
        inside = ["unshare", "--mount", "--propagation=private", "bash", "-c", script, "bash", *command]
        done = subprocess.run(
            inside, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **self.variables}, timeout=300
        )
        assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    """A machine to which all parts were sent, and where the node is up."""
    if PREFIX.exists() or PARTS.exists():
        pytest.skip(
            f"{PREFIX} or {PARTS} is there: a node has travelled to this machine already, and is not ours to remove"
        )
    folder = tmp_path_factory.mktemp("travel")
    mounts = ("/usr", "/opt", Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve())
    there = {"NAME": "travelled", "SUBNET": "172.30.0.8/30", "OUT": str(folder / "out"), "RUN": "", "DATA": ""}
    variables = {f"LORARL_CLUSTER_{name}": value for name, value in there.items()}
    variables |= {"LORARL_GPU_MOUNTS": ":".join(dict.fromkeys(map(str, mounts))), "LORARL_GPU_PYTHONPATH": ""}
    machine = Elsewhere(variables, packed(folder / "parts"))
    try:
        for part in machine.parts:
            subprocess.run(["bash", str(part / "put.sh")], check=True)
        print(machine.run(sys.executable, "-m", "gpu_node", "up"))
        yield machine
    finally:
        if PREFIX.exists():
            machine.run(sys.executable, "-m", "gpu_node", "down")
        for left in (PREFIX, PARTS):
            shutil.rmtree(left, ignore_errors=True)


def packed(out: Path) -> list[Path]:
    """The node in parts. Its builder is gone afterwards, unless it ran before."""
    settings = from_environment()
    was_up = Node(settings).init is not None
    try:
        return packing.pack(settings, out, print)
    except (BaseImageError, NotReadyError, ToolMissingError) as reason:
        pytest.skip(str(reason))
    finally:
        if not was_up and os.geteuid() == 0:
            lifecycle.down(settings, print, everything=False)


@pytest.fixture
def cluster(elsewhere: Elsewhere, tmp_path: Path) -> Iterator[RealCluster]:
    with real_cluster(from_environment(elsewhere.variables).kubeconfig, tmp_path) as cluster:
        yield cluster


def test_no_part_is_larger_than_what_can_be_sent(elsewhere: Elsewhere) -> None:
    sizes = [sum(file.stat().st_size for file in part.iterdir()) for part in elsewhere.parts]
    assert [part.name for part in elsewhere.parts] == [f"{index:02d}" for index in range(len(sizes))]
    assert max(sizes) <= LARGEST_PART_BYTES


def test_the_node_runs_what_it_brought(elsewhere: Elsewhere) -> None:
    assert elsewhere.run("bash", "-c", "command -v ip nft openssl runc kubectl").split() == [
        str(PREFIX / "bin" / name) for name in ("ip", "nft", "openssl", "runc", "kubectl")
    ]
    assert "not running" not in elsewhere.run(sys.executable, "-m", "node", "status")


def test_a_job_trains_with_the_machines_own_stack(elsewhere: Elsewhere, cluster: RealCluster, tmp_path: Path) -> None:
    """The image is empty without its mounts, so all of it, also the submission, needs the changes to the manifest."""
    with bucket_of(cluster, tmp_path) as bucket:
        ADDITION.upload(bucket)
    make_room(cluster, TEAM, level="privileged")
    changes = stack.changes(stack.from_environment(None, elsewhere.variables))
    apply(cluster, ADDITION.manifest(JOB, {**changes, "cluster.image": stack.IMAGE}), namespace=TEAM)
    with watched(cluster.api, TEAM, JOB) as job:
        status = job.until(
            LONGEST_SECONDS, "it has succeeded", lambda seen: seen.status.get("phase") == "Succeeded"
        ).status
    assert status["metrics"]["evalScore"] > 0.9
