"""One API server for the whole tier, with the generated CRD in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from control_plane import Cluster, ToolMissingError, control_plane

CRD = Path(__file__).parents[2] / "crds/lorarl.io_lorarljobs.yaml"


@pytest.fixture(scope="session")
def bare_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """An API server without our CRD."""
    try:
        with control_plane(tmp_path_factory.mktemp("control-plane")) as cluster:
            yield cluster
    except ToolMissingError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def cluster(bare_cluster: Cluster) -> Cluster:
    """An API server that serves LoRARLJobs."""
    bare_cluster.must("apply", "--server-side", "-f", str(CRD))
    bare_cluster.must("wait", "--for=condition=Established", "--timeout=30s", "crd/lorarljobs.lorarl.io")
    return bare_cluster
