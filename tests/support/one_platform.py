"""Which files of tests one process of pytest-xdist runs: those that need the same platform stay together.

A platform is an API server with KubeRay, perhaps Kueue, and an operator. It takes some 15 s of a core to start.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling

FIXTURES = {"kueue": r"\bkueue_(platform|replica)\b", "kuberay": r"\bkuberay_platform\b"}
"""Platforms of tests/apiserver/conftest.py, and how a file names them. A file that names both is of the first."""


class ByPlatform(LoadFileScheduling):
    """`--dist loadfile`, but files that share a platform are one unit of work."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(super()._split_scope(nodeid))


@cache
def unit_of(file: str) -> str:
    """Return the platform that a file of tests names; the file itself if it names none."""
    text = Path(file).read_text() if file.startswith("tests/apiserver/") else ""
    return next((name for name, pattern in FIXTURES.items() if re.search(pattern, text)), file)
