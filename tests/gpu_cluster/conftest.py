"""A Kubernetes node with GPUs, as `python -m gpu_node up` brings it up (docs/gpu-cluster.md). Skipped if there is none.

LORARL_GPU_REHEARSAL=1 runs the same tests on such a node without a GPU, with the example for CPUs, to test the tests.
LORARL_GPU_OUT names a folder for their findings; by default it is the node's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_cluster.ground import Ground, gpu_memory
from gpu_node import arrival, stack
from node.node import Node
from node.settings import from_environment
from support.cluster.kubectl import RealCluster, real_cluster
from support.real_cluster.example import ADDITION, ARITHMETIC
from support.real_cluster.store import Bucket, bucket_of


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """The cluster of the node that travelled."""
    settings = from_environment()
    if not stack.is_here():
        pytest.skip(
            "no node has travelled to this machine: docs/gpu-cluster.md says how. "
            "Run `. tools/gpu_node/env.sh` before pytest"
        )
    if Node(settings).init is None:
        pytest.skip("the node that travelled here is not up: python -m gpu_node up")
    with real_cluster(settings.kubeconfig, tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def ground(cluster: RealCluster) -> Ground:
    """Where the tests take place."""
    settings = from_environment()
    rehearsal = bool(os.environ.get("LORARL_GPU_REHEARSAL"))
    gpus = 0 if rehearsal else arrival.gpus(cluster)
    if not gpus and not rehearsal:
        pytest.skip(f"the node has no {arrival.GPU} to give away: {settings.logs}/nvidia-device-plugin.log says why")
    out = Path(os.environ.get("LORARL_GPU_OUT") or settings.out)
    out.mkdir(parents=True, exist_ok=True)
    mounted = {**stack.changes(stack.from_environment(settings.driver)), "cluster.image": stack.IMAGE}
    return Ground(cluster, gpus, ARITHMETIC if gpus else ADDITION, mounted, out, gpu_memory(gpus))


@pytest.fixture(scope="session")
def bucket(ground: Ground) -> Iterator[Bucket]:
    """The store, with the example's base model and data."""
    with bucket_of(ground.cluster, ground.out) as bucket:
        ground.example.upload(bucket)
        yield bucket
