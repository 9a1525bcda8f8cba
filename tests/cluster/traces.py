"""What a node may leave on a machine: everything of it that others could see, as sets to compare."""

from __future__ import annotations

import subprocess
from pathlib import Path

from node import cgroups
from node.namespaces import START_TIME, STATE, read_stat
from node.node import Node

# Folders in which programs like to leave something.
FOLDERS = ("/run", "/run/netns", "/var/lib", "/var/log", "/opt", "/etc", "/etc/cni", "/usr/libexec", "/run/containerd")
SETTINGS = (
    "net/ipv4/ip_forward",
    "net/ipv4/conf/all/forwarding",
    "kernel/panic",
    "kernel/panic_on_oops",
    "vm/overcommit_memory",
)


def traces() -> dict[str, set[str]]:
    """What is there now, processes aside, by the kind of thing."""
    return {
        "links": {path.name for path in Path("/sys/class/net").iterdir()},
        "routes": _lines("ip", "route", "show", "table", "all"),
        "network namespaces": _lines("ip", "netns", "list"),
        "nft tables": _lines("nft", "list", "tables"),
        "mounts": set(Path("/proc/self/mounts").read_text().splitlines()),
        "cgroups": {str(path) for root in _cgroup_roots() for path in root.glob("*/")},
        "files": {str(path) for folder in FOLDERS if Path(folder).is_dir() for path in Path(folder).iterdir()},
        "kernel settings": {f"{name}={_read(Path('/proc/sys', name))}" for name in SETTINGS},
    }


def processes_of(node: Node) -> dict[int, str]:
    """Return process id -> start time of all processes of the node: its programs, and its cgroup (pods and builds)."""
    pids = set(node.init.processes()) if node.init else set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and f":/{node.settings.name}/" in _read(entry / "cgroup"):
            pids.add(int(entry.name))
    return {pid: stat[START_TIME] for pid in pids if (stat := read_stat(pid))}


def still_alive(processes: dict[int, str]) -> set[int]:
    """Those of them that have not ended."""
    return {
        pid
        for pid, start_time in processes.items()
        if (stat := read_stat(pid)) and stat[START_TIME] == start_time and stat[STATE] != "Z"
    }


def _cgroup_roots() -> list[Path]:
    return [root for roots in cgroups.hierarchies(cgroups.MOUNTS.read_text()).values() for root in roots]


def _lines(*command: str) -> set[str]:
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines())


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return "absent"
