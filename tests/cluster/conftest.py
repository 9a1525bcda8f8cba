"""The clusters of this tier: the one that a user names, or a node on this machine."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from cluster import lifecycle
from cluster.node import Node
from cluster.settings import Settings, from_environment
from cluster.skipping import up_or_skip
from support.cluster.kubectl import RealCluster, real_cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """A real cluster: that of $LORARL_TEST_KUBECONFIG (`KUBECONFIG=... make test-cluster`), or else the node of `make cluster`.

    A node that is up already stays up; one that had to be brought up is taken down at the end.
    """
    folder = tmp_path_factory.mktemp("cluster")
    if kubeconfig := os.environ.get("LORARL_TEST_KUBECONFIG"):
        with real_cluster(Path(kubeconfig), folder) as named:
            yield named
        return
    settings = from_environment()
    was_up = Node(settings).init is not None
    up_or_skip(settings)
    try:
        with real_cluster(settings.kubeconfig, folder) as own:
            yield own
    finally:
        if not was_up:
            lifecycle.down(settings, print, everything=False)


@pytest.fixture(scope="session")
def own_node(cluster: RealCluster) -> Node:
    """The node behind `cluster`, for tests that stop its programs: never those of a cluster that a user names."""
    if cluster.kubeconfig != from_environment().kubeconfig:
        pytest.skip(f"{cluster.kubeconfig} is not the node of `make cluster`, and its programs are not ours to stop")
    return Node(from_environment())


@pytest.fixture(scope="session")
def spare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """The settings of a node beside that of `make cluster`, with everything of its own: tests may do to it what they like."""
    settings = dataclasses.replace(
        Settings(),
        name="lorarltest",
        run=Path("/run/lorarltest-cluster"),
        data=Path("/var/lib/lorarltest-cluster"),
        out=tmp_path_factory.mktemp("spare"),
        subnet=IPv4Network("172.30.0.4/30"),
        free_gb=2.0,
    )
    yield settings
    if os.geteuid() == 0:
        lifecycle.down(settings, print, everything=True)
