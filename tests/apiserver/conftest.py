"""API servers for the whole tier: a bare one with the generated CRD, and platforms with KubeRay and Kueue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cluster.control_plane import Cluster, control_plane
from support.cluster.crds import CRDS, install_crds
from support.cluster.operator import Operator, operator, prepare, wait_leader
from support.cluster.platform import Platform, platform
from support.cluster.tools import tools_or_skip


@pytest.fixture(scope="session")
def bare_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """An API server without our CRD."""
    with tools_or_skip(), control_plane(tmp_path_factory.mktemp("control-plane")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def cluster(bare_cluster: Cluster) -> Cluster:
    """An API server that serves LoRARLJobs."""
    install_crds(bare_cluster, *CRDS)
    return bare_cluster


@pytest.fixture(scope="session")
def kuberay_platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """Kubernetes' controllers, KubeRay and simulated nodes. It serves LoRARLJobs and keeps an audit log."""
    yield from _platform(tmp_path_factory.mktemp("platform"), kueue=False)


@pytest.fixture(scope="session")
def kueue_platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """The same with Kueue."""
    yield from _platform(tmp_path_factory.mktemp("kueue-platform"), kueue=True)


@pytest.fixture(scope="session")
def replica(kuberay_platform: Platform) -> Iterator[Operator]:
    """Our operator on the platform without Kueue. It allows 40 s for a clean-up."""
    yield from _operator(kuberay_platform, "--cleanup-seconds=40")


@pytest.fixture(scope="session")
def kueue_replica(kueue_platform: Platform) -> Iterator[Operator]:
    """Our operator on the platform with Kueue. Jobs outside a queue may be placed in part for 6 to 9 s."""
    yield from _operator(kueue_platform, "--partly-placed-seconds=6")


def _operator(p: Platform, *arguments: str) -> Iterator[Operator]:
    with operator(p.cluster, prepare(p.cluster), "operator", *arguments) as one:
        yield wait_leader(one)


def _platform(folder: Path, *, kueue: bool) -> Iterator[Platform]:
    with tools_or_skip(), platform(folder, crds=CRDS, kueue=kueue, audit=True) as running:
        yield running
