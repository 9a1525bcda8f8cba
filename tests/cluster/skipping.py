"""Where a node cannot be, its tests are skipped, and say why."""

from __future__ import annotations

import pytest

from node import lifecycle
from node.errors import NotReadyError
from node.node import Node
from node.settings import Settings


def up_or_skip(settings: Settings) -> Node:
    """The node, up; the test that asks is skipped where the machine is not made for it."""
    try:
        return lifecycle.up(settings, print)
    except NotReadyError as reason:
        pytest.skip(str(reason))
