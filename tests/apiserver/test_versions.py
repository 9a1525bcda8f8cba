"""The way from v1alpha1 to v1beta1, as docs/operator.md describes it, tried on a real API server."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from support.cluster.client import ApiError, Object
from support.cluster.control_plane import Cluster, control_plane
from support.cluster.crds import CRD, install_crds
from support.cluster.lorarljobs import lorarljob, report
from support.cluster.processes import until
from support.cluster.tools import tools_or_skip

NAME = "lorarljobs.lorarl.io"
DEFINITION = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{NAME}"


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """An API server of this test's own."""
    with tools_or_skip(), control_plane(tmp_path_factory.mktemp("versions")) as one:
        install_crds(one, CRD)
        yield one


def versions(cluster: Cluster, **states: tuple[bool, bool]) -> None:
    """Let the definition have these versions, all with the schema of v1alpha1: whether served, and whether stored."""
    today = cluster.api.request("GET", DEFINITION)["spec"]["versions"][0]
    wanted = [
        copy.deepcopy(today) | {"name": name, "served": served, "storage": storage}
        for name, (served, storage) in states.items()
    ]
    cluster.api.patch("CustomResourceDefinition", NAME, {"spec": {"versions": wanted}})


def stored(cluster: Cluster) -> list[str]:
    found: list[str] = cluster.api.request("GET", DEFINITION)["status"]["storedVersions"]
    return found


def read(cluster: Cluster, version: str) -> Object | None:
    """The job in a version; None while the version is not served."""
    try:
        return cluster.api.request("GET", f"/apis/lorarl.io/{version}/namespaces/default/lorarljobs/demo")
    except ApiError as error:
        assert error.status == 404, error
        return None


@pytest.mark.long
def test_the_next_version_of_the_api(cluster: Cluster) -> None:
    api = cluster.api
    spec: Any = api.create(lorarljob("default", "demo"))["spec"]

    # 1. The next version is served too. Users may write either; operator and trainers still write the old one.
    versions(cluster, v1alpha1=(True, True), v1beta1=(True, False))
    job = until(20, "v1beta1 is served", lambda: read(cluster, "v1beta1"))
    assert (job["apiVersion"], job["spec"]) == ("lorarl.io/v1beta1", spec)
    report(api, "default", "demo", step=3)
    assert (read(cluster, "v1beta1") or {})["status"]["step"] == 3

    # 2. It is stored. Both are served, because the owner references of running jobs' objects name the old one.
    versions(cluster, v1alpha1=(True, False), v1beta1=(True, True))
    assert stored(cluster) == ["v1alpha1", "v1beta1"]
    until(20, "v1alpha1 is served", lambda: read(cluster, "v1alpha1"))
    # The old one cannot be removed as long as an object may be stored in it.
    with pytest.raises(ApiError, match=r"status.storedVersions\[0\]"):
        versions(cluster, v1beta1=(True, True))

    # 3. Each job is written again, unchanged, which stores it in the new version.
    job = read(cluster, "v1beta1")
    assert job is not None
    before = job["metadata"]["resourceVersion"]
    job = api.request("PUT", "/apis/lorarl.io/v1beta1/namespaces/default/lorarljobs/demo", job)
    assert job["metadata"]["resourceVersion"] != before
    api.patch("CustomResourceDefinition", NAME, {"status": {"storedVersions": ["v1beta1"]}}, None, "status")

    # 4. The old one is no longer served, and then removed.
    versions(cluster, v1alpha1=(False, False), v1beta1=(True, True))
    until(20, "v1alpha1 is not served", lambda: read(cluster, "v1alpha1") is None)
    versions(cluster, v1beta1=(True, True))
    job = until(20, "v1beta1 is served", lambda: read(cluster, "v1beta1"))
    assert (job["spec"], job["status"]["step"]) == (spec, 3)
