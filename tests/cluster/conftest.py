"""The clusters of this tier: the one that a user names, or a node on this machine."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from cluster.skipping import up_or_skip
from node import builds, lifecycle
from node.base_image import BaseImageError
from node.installation import KUBERAY, STORE, Images, install_kuberay, install_lorarl, install_store, wait_available
from node.node import Node
from node.settings import Settings, from_environment
from support.cluster.kubectl import RealCluster, real_cluster

FIRST_SECONDS = 1800
"""The first test pays for the images, which take minutes on a machine that has never built them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests that want images the time to have them built."""
    for item in items:
        if Path(__file__).parent in item.path.parents and "images" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(FIRST_SECONDS))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """A real cluster: $LORARL_TEST_KUBECONFIG's (`KUBECONFIG=... make test-cluster`), or the node of `make cluster`.

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
def images(cluster: RealCluster) -> Images:
    """Our images and the S3 server's: built from this tree, or named by the user of another cluster."""
    if cluster.kubeconfig != from_environment().kubeconfig:
        named = Images(
            *(os.environ.get(f"LORARL_TEST_{each.name.upper()}_IMAGE", "") for each in dataclasses.fields(Images))
        )
        if not all(dataclasses.astuple(named)):
            pytest.skip(
                "a named cluster pulls its images: set LORARL_TEST_OPERATOR_IMAGE, _TRAINER_IMAGE and _STORE_IMAGE"
            )
        return named
    try:
        builds.build_all(from_environment())
    except BaseImageError as reason:
        pytest.skip(str(reason))
    return Images(builds.OPERATOR, builds.TRAINER, builds.STORE)


@pytest.fixture(scope="session")
def out() -> Path:
    """Where tests leave what they saw, for people."""
    folder = from_environment().out
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def installed(cluster: RealCluster, images: Images) -> RealCluster:
    """The cluster with KubeRay, lorarl and an S3 server, which stay there."""
    install_kuberay(cluster)
    install_store(cluster, images.store)
    install_lorarl(cluster, images.operator, images.trainer)
    wait_available(cluster, KUBERAY, "kuberay-operator")
    wait_available(cluster, STORE, "s3")
    return cluster


@pytest.fixture(scope="session")
def own_node(cluster: RealCluster) -> Node:
    """The node of `cluster`, for tests that stop its programs or read its images; never a cluster that a user names."""
    if cluster.kubeconfig != from_environment().kubeconfig:
        pytest.skip(f"{cluster.kubeconfig} is not the node of `make cluster`: its programs and images are not ours")
    return Node(from_environment())


@pytest.fixture(scope="session")
def spare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """The settings of a second node beside that of `make cluster`, which tests may treat as they like."""
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
