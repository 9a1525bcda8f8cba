"""The memory that a job can take on CPU: the machine's, or what is left of a container's limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from lorarl_trainer.devices.base import Host
from lorarl_trainer.devices.host_memory import host_memory

GIB = 1 << 30


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine with 20 GiB, of which 16 are available, and without cgroups."""
    (tmp_path / "meminfo").write_text(
        f"MemTotal:       {20 << 20} kB\nMemFree:         {1 << 20} kB\nMemAvailable:   {16 << 20} kB\n"
    )
    return tmp_path


def write(folder: Path, **files: object) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def test_a_machine_gives_what_is_available_but_for_what_ray_keeps_free(machine: Path) -> None:
    assert host_memory(machine, machine) == Host(20 * GIB, 15 * GIB)


def test_a_container_gives_what_is_left_of_its_limit(machine: Path) -> None:
    stat = f"anon 5\ninactive_file {GIB}\nactive_file 7"
    write(machine, memory__max=10 * GIB, memory__current=4 * GIB, memory__stat=stat)
    assert host_memory(machine, machine) == Host(10 * GIB, 6 * GIB + GIB // 2)


def test_an_old_kernels_container_does_too(machine: Path) -> None:
    stat = f"inactive_file 3\ntotal_inactive_file {GIB}"
    files = {"memory__limit_in_bytes": 10 * GIB, "memory__usage_in_bytes": 4 * GIB, "memory__stat": stat}
    write(machine / "memory", **files)
    assert host_memory(machine, machine) == Host(10 * GIB, 6 * GIB + GIB // 2)


@pytest.mark.parametrize("limit", ["max", 30 * GIB])
def test_a_limit_above_the_machines_memory_is_none(machine: Path, limit: object) -> None:
    write(machine, memory__max=limit, memory__current=4 * GIB, memory__stat="")
    assert host_memory(machine, machine) == Host(20 * GIB, 15 * GIB)


def test_a_full_container_has_nothing_left(machine: Path) -> None:
    write(machine, memory__max=GIB, memory__current=GIB, memory__stat="")
    assert host_memory(machine, machine).free == 0
