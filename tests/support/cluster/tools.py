"""What a fixture does where a program that it needs is not there: its tests are skipped, with the way to get the program as the reason."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from support.cluster.processes import ToolMissingError


@contextmanager
def tools_or_skip() -> Iterator[None]:
    """Skip the tests of the fixture in this block, and print why, where a program is missing. `make test` builds them all first."""
    try:
        yield
    except ToolMissingError as missing:
        pytest.skip(str(missing))
