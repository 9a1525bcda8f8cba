"""Whether memory has run out in this pod. The kernel counts the processes that it has killed for it in a container."""

from __future__ import annotations

import re
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
_COUNTS = ("memory.events", "memory/memory.oom_control")
"""Files with this container's count, for cgroup versions 2 and 1."""


def kills_for_memory(cgroups: Path = CGROUPS) -> int:
    """Return how many processes of this container the kernel has killed for lack of memory; 0 if it does not say."""
    for name in _COUNTS:
        try:
            text = (cgroups / name).read_text()
        except OSError:
            continue
        if found := re.search(r"^oom_kill (\d+)$", text, re.MULTILINE):
            return int(found[1])
    return 0
