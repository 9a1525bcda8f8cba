"""The chart's tests need helm itself."""

from __future__ import annotations

import pytest

from support.cluster.processes import ToolMissingError, find


@pytest.fixture(autouse=True, scope="session")
def helm_is_there() -> None:
    try:
        find("helm")
    except ToolMissingError as missing:
        pytest.skip(str(missing))
