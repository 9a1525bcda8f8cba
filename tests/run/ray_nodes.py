"""A Ray cluster of several nodes on this machine, as KubeRay makes it: a head without workers; a cache per node."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class RayNodes:
    """The cluster. Its nodes differ in what the operator gives their pods: a cache and a run folder of their own."""

    def __init__(self, folder: Path) -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        from ray.cluster_utils import Cluster

        self._folder = folder
        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        self._nodes: dict[str, Any] = {}

    @property
    def address(self) -> str:
        """What RAY_ADDRESS is in the driver."""
        return str(self._cluster.address)

    def cache(self, name: str) -> Path:
        """A pod's LORARL_CACHE."""
        return self._folder / name / "cache"

    def models(self, name: str) -> list[Path]:
        """What a node has of base models, whole or not."""
        return sorted(path for path in (self.cache(name) / "models").glob("*") if path.is_dir())

    def add(self, name: str) -> None:
        """Start a node with room for one worker."""
        environment = {"LORARL_CACHE": str(self.cache(name)), "LORARL_RUN_DIR": str(self._folder / name / "run")}
        self._nodes[name] = self._cluster.add_node(num_cpus=1, env_vars=environment)

    def kill(self, name: str) -> None:
        """End all processes of a node as kill -9 does."""
        self._cluster.remove_node(self._nodes.pop(name), allow_graceful=False)

    def stop(self) -> None:
        """End the cluster."""
        self._cluster.shutdown()


@contextmanager
def ray_nodes(folder: Path, *names: str) -> Iterator[RayNodes]:
    """Run a head and nodes of these names until the block ends."""
    nodes = RayNodes(folder)
    try:
        for name in names:
            nodes.add(name)
        yield nodes
    finally:
        nodes.stop()
