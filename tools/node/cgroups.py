"""The cgroup of pods and image builds, in version 1 (one hierarchy per controller) and version 2 (one for all)."""

from __future__ import annotations

import errno
import time
from pathlib import Path

MOUNTS = Path("/proc/self/mounts")
# kubelet and runc limit by these. What counts is what `mount` shows.
NEEDED = frozenset({"cpu", "cpuset", "memory", "pids"})
# In version 2 kubelet also wants those of these that the kernel has.
WANTED = NEEDED | {"hugetlb", "io"}
REMOVAL_SECONDS = 10.0


def hierarchies(mounts: str) -> dict[str, list[Path]]:
    """Return where hierarchies are mounted, by file system: `cgroup` is version 1, `cgroup2` version 2."""
    found: dict[str, list[Path]] = {"cgroup": [], "cgroup2": []}
    for line in mounts.splitlines():
        _, folder, kind, *_ = line.split()
        if kind in found and Path(folder) not in found[kind]:
            found[kind].append(Path(folder))
    return found


def usable(mounts: str) -> list[Path]:
    """Return the hierarchies with controllers: in the hybrid layout, where version 2 has none, those of version 1."""
    found = hierarchies(mounts)
    return found["cgroup"] or found["cgroup2"][:1]


def everywhere(name: str) -> list[Path]:
    """Return the folders of this cgroup. In the hybrid layout runc also makes one in the empty hierarchy."""
    return [
        folder / name
        for roots in hierarchies(MOUNTS.read_text()).values()
        for folder in roots
        if (folder / name).exists()
    ]


def is_version_2(folder: Path) -> bool:
    """Return whether this is a cgroup of version 2."""
    return (folder / "cgroup.controllers").exists()


def controllers() -> set[str]:
    """Return the controllers that can be used."""
    folders = usable(MOUNTS.read_text())
    if len(folders) == 1 and is_version_2(folders[0]):
        return set((folders[0] / "cgroup.controllers").read_text().split())
    return {name for folder in folders for name in folder.name.split(",")}


def make(name: str) -> None:
    """Make the cgroup in each hierarchy, with all controllers that pods need.

    Raises:
        OSError: the kernel refuses. In version 2 a cgroup with its own processes cannot hand its controllers down.
    """
    for root in usable(MOUNTS.read_text()):
        folder = root / name
        if is_version_2(root):
            _hand_down(root)
            folder.mkdir(exist_ok=True)
            _hand_down(folder)
        else:
            folder.mkdir(exist_ok=True)
            for file in ("cpuset.cpus", "cpuset.mems"):
                if (folder / file).exists():
                    # If it were empty, no process could join.
                    (folder / file).write_text((root / file).read_text())


def _hand_down(folder: Path) -> None:
    for controller in WANTED.intersection((folder / "cgroup.controllers").read_text().split()):
        (folder / "cgroup.subtree_control").write_text(f"+{controller}")


def lift_memory_limit(name: str) -> None:
    """Let the cgroup use all memory of the machine, also what a virtual machine gets later."""
    for folder in everywhere(name):
        for file, unlimited in (("memory.max", "max"), ("memory.limit_in_bytes", "-1")):
            if (folder / file).exists():
                (folder / file).write_text(unlimited)


def remove(name: str) -> None:
    """Remove the cgroup with all below it. Its processes must have ended; the kernel may release it a moment later."""
    for folder in everywhere(name):
        for below in sorted(
            (path for path in folder.rglob("*") if path.is_dir()), key=lambda path: len(path.parts), reverse=True
        ):
            _remove_one(below)
        _remove_one(folder)


def _remove_one(folder: Path) -> None:
    deadline = time.monotonic() + REMOVAL_SECONDS
    while True:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
