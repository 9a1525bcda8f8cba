"""Skips a fixture's tests if a program is missing. The reason says how to get the program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from support.cluster.processes import ToolMissingError


@contextmanager
def tools_or_skip() -> Iterator[None]:
    """Skip the tests of the fixture in this block, with the reason, if a program is missing. `make test` builds all."""
    try:
        yield
    except ToolMissingError as missing:
        pytest.skip(str(missing))
