"""How many CPUs a process can use: the machine's, or those of a container's limit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lorarl_trainer.devices.host_cpus import host_cpus


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))


def test_a_machine_without_limits_gives_its_cores(tmp_path: Path) -> None:
    assert host_cpus(tmp_path) == 8


@pytest.mark.parametrize(
    ("limit", "cpus"),
    [("max 100000", 8), ("400000 100000", 4), ("250000 100000", 3), ("10000 100000", 1), ("1600000 100000", 8)],
)
def test_a_container_gives_the_cpus_of_its_limit(tmp_path: Path, limit: str, cpus: int) -> None:
    (tmp_path / "cpu.max").write_text(f"{limit}\n")
    assert host_cpus(tmp_path) == cpus


@pytest.mark.parametrize(("quota", "cpus"), [(-1, 8), (150_000, 2)])
def test_an_old_kernels_container_does_too(tmp_path: Path, quota: int, cpus: int) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text(f"{quota}\n")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
    assert host_cpus(tmp_path) == cpus
