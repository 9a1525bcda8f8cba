"""How much main memory a job can take: what the machine has free, or what is left of a container's limit."""

from __future__ import annotations

import re
from pathlib import Path

from lorarl_trainer.devices.base import Host

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_RESERVED = 0.05
"""Ray ends a worker when more than 95% of the memory is used (RAY_memory_usage_threshold)."""
_LIMITS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
)
"""A container's limit, its use, and the part of it that the kernel gives back, for cgroup versions 2 and 1."""


def host_memory(proc: Path = PROC, cgroups: Path = CGROUPS) -> Host:
    """Return the memory of this machine, or of this container if it has less."""
    text = (proc / "meminfo").read_text()
    total, free = (int(re.findall(rf"^{name}: +(\d+) kB", text, re.M)[0]) * 1024 for name in _MEMINFO)
    for limit_file, used_file, cached in _LIMITS:
        limit = _number(cgroups / limit_file)
        if limit is None or limit >= total:  # version 1 has a huge number where there is no limit
            continue
        stat = (cgroups / used_file).with_name("memory.stat").read_text()
        found = re.search(rf"^{cached} (\d+)$", stat, re.M)
        used = (_number(cgroups / used_file) or 0) - (int(found[1]) if found else 0)
        total, free = limit, min(free, limit - used)
    return Host(total, max(0, free - int(_RESERVED * total)))


_MEMINFO = ("MemTotal", "MemAvailable")


def _number(file: Path) -> int | None:
    """Return a file's number; None if there is no file, or it says `max`."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
