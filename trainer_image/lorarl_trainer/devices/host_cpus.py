"""How many CPUs a process can use: those of the machine, or of a container's limit."""

from __future__ import annotations

import math
import os
from pathlib import Path

from lorarl_trainer.devices.host_memory import CGROUPS


def host_cpus(cgroups: Path = CGROUPS) -> int:
    """Return the CPUs of this process, at least one."""
    cores, quota = len(os.sched_getaffinity(0)), _quota(cgroups)
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def _quota(cgroups: Path) -> float | None:
    """Return how many CPUs' time a container gets, by cgroup version 2 or 1; None if it has no limit."""
    version_2, version_1 = cgroups / "cpu.max", [cgroups / "cpu" / f"cpu.cfs_{what}_us" for what in ("quota", "period")]
    try:
        text = version_2.read_text() if version_2.exists() else " ".join(file.read_text() for file in version_1)
        most, period = map(int, text.split())
    except (OSError, ValueError):  # no such files, or `max`
        return None
    return most / period if most > 0 and period > 0 else None
