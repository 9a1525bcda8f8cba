"""The platform of the chaos tests: KubeRay, simulated nodes with room for all jobs, and our operator's rights."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.cluster.crds import CRD
from support.cluster.kwok import add_node
from support.cluster.platform import Platform, platform
from support.cluster.tools import tools_or_skip


@pytest.fixture(scope="session")
def p(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with tools_or_skip(), platform(tmp_path_factory.mktemp("chaos"), crds=[CRD]) as running:
        add_node(running.cluster, "large", cpus=10_000, memory="40Ti", pods=5_000)
        yield running
