"""Whether memory has run out in this pod: the kernel counts whom it has killed for it, where the container itself lives on."""

from __future__ import annotations

import re
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
_COUNTS = ("memory.events", "memory/memory.oom_control")
"""Of this container, by cgroup's version: 2, 1."""


def kills_for_memory(cgroups: Path = CGROUPS) -> int:
    """How many processes of this container the kernel has killed because its memory had run out; 0 where it does not say."""
    for name in _COUNTS:
        try:
            text = (cgroups / name).read_text()
        except OSError:
            continue
        if found := re.search(r"^oom_kill (\d+)$", text, re.MULTILINE):
            return int(found[1])
    return 0
