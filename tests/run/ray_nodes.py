"""A Ray cluster of several nodes on this machine, as KubeRay makes it: a head without workers; a cache per node."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from lorarl_api.environment_pods import ENVIRONMENT_RESOURCE
from lorarl_api.separate_engines import ENGINE_RESOURCE

QUICK_HEALTH_CHECKS = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 4,
}
"""Ray notices a lost node after 2 s instead of its usual 14 to 25 s. The calls to the node still fail before that."""

ACTORS = ("ray::Worker", "ray::CheckpointingWorker")
"""How the workers' command lines begin."""


class RayNodes:
    """The cluster. Each node has its own cache and run folder, which the operator gives to each pod."""

    def __init__(self, folder: Path) -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        from ray.cluster_utils import Cluster

        self._folder = folder
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": QUICK_HEALTH_CHECKS}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._nodes: dict[str, Any] = {}

    @property
    def address(self) -> str:
        """The driver's RAY_ADDRESS."""
        return str(self._cluster.address)

    def cache(self, name: str) -> Path:
        """A pod's LORARL_CACHE."""
        return self._folder / name / "cache"

    def run_dir(self, name: str) -> Path:
        """A pod's LORARL_RUN_DIR."""
        return self._folder / name / "run"

    @property
    def secrets(self) -> Path:
        """The pods' LORARL_SECRETS_DIR."""
        return self._folder / "secrets"

    def models(self, name: str) -> list[Path]:
        """The folders of base models on a node that have weights, complete or not. Others have a config.json alone."""
        folders = (path for path in (self.cache(name) / "models").glob("*") if path.is_dir())
        return sorted(folder for folder in folders if any(folder.rglob("*.safetensors*")))

    def add(self, name: str, *, engine: bool = False, plays: bool = False) -> None:
        """Start a node with room for one worker; or for an engine, or the job's environment, and no worker."""
        environment = {
            "LORARL_CACHE": str(self.cache(name)),
            "LORARL_RUN_DIR": str(self.run_dir(name)),
            "LORARL_POD": name,
            "LORARL_SECRETS_DIR": str(self.secrets),
        }
        own = ENGINE_RESOURCE if engine else ENVIRONMENT_RESOURCE if plays else None
        room: dict[str, Any] = {"num_cpus": 0, "resources": {own: 1}} if own else {"num_cpus": 1}
        self._nodes[name] = self._cluster.add_node(**room, env_vars=environment)

    def kill(self, name: str) -> None:
        """End all processes of a node as kill -9 does."""
        self._cluster.remove_node(self._nodes.pop(name), allow_graceful=False)

    def workers_left(self, seconds: float) -> list[str]:
        """The workers' processes that have not ended after `seconds`."""
        deadline = time.monotonic() + seconds
        while (left := _workers()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def stop(self) -> None:
        """End the cluster."""
        self._cluster.shutdown()


@contextmanager
def ray_nodes(folder: Path, *names: str) -> Iterator[RayNodes]:
    """Run a head and nodes with these names until the block ends."""
    nodes = RayNodes(folder)
    try:
        for name in names:
            nodes.add(name)
        yield nodes
    finally:
        nodes.stop()


def _workers() -> list[str]:
    """The actors' processes among all that this process has started."""
    found: list[str] = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            line = " ".join(process.cmdline())
            if process.status() != psutil.STATUS_ZOMBIE and line.startswith(ACTORS):
                found.append(f"{process.pid} {line}")
    return found
