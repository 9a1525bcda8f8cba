"""The chart's tests need helm."""

from __future__ import annotations

import pytest

from support.cluster.processes import find
from support.cluster.tools import tools_or_skip


@pytest.fixture(autouse=True, scope="session")
def helm_is_installed() -> None:
    with tools_or_skip():
        find("helm")
