"""Which cgroup hierarchies count, in the three layouts that machines have."""

from __future__ import annotations

from pathlib import Path

from node.cgroups import hierarchies, usable

V1 = "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\ncgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"
V2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n"
OTHERS = "proc /proc proc rw 0 0\ntmpfs /sys/fs/cgroup tmpfs rw 0 0\n"


def test_version_1() -> None:
    assert usable(OTHERS + V1) == [Path("/sys/fs/cgroup/cpu,cpuacct"), Path("/sys/fs/cgroup/memory")]


def test_version_2() -> None:
    assert usable(OTHERS + V2) == [Path("/sys/fs/cgroup")]


def test_hybrid_is_version_1() -> None:
    hybrid = "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
    assert usable(OTHERS + V1 + hybrid) == usable(V1)
    assert hierarchies(OTHERS + V1 + hybrid)["cgroup2"] == [Path("/sys/fs/cgroup/unified")]


def test_none() -> None:
    assert usable(OTHERS) == []
