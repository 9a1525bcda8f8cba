"""Everything that is missing is named at once, with what to do."""

from __future__ import annotations

import dataclasses
from ipaddress import IPv4Network
from typing import Any

import pytest

from node.cgroups import NEEDED
from node.prerequisites import CAPABILITIES, LIMITS, Facts, complaints, missing_packages
from node.settings import Settings

GOOD = Facts(
    is_root=True,
    capabilities=sum(1 << bit for bit in CAPABILITIES.values()),
    missing_commands=frozenset(),
    missing_cni_plugins=frozenset(),
    missing_tools=frozenset(),
    limits={name: good for name, (_, good) in LIMITS.items()},
    open_files=20000,
    has_overlayfs=True,
    controllers=NEEDED | {"blkio"},
    room_gb=50.0,
    foreign=(),
    overlapping=(),
)
BAD: list[tuple[dict[str, Any], list[str]]] = [
    ({"capabilities": 1 << 12}, ["root without CAP_SYS_CHROOT, CAP_SYS_PTRACE, CAP_SYS_ADMIN", "--privileged"]),
    ({"missing_commands": frozenset({"runc", "ip"})}, ["not installed: ip, runc.", "apt-get install iproute2 runc"]),
    ({"missing_cni_plugins": frozenset({"ptp"})}, ["CNI plugin ptp", "apt-get install containernetworking-plugins"]),
    ({"missing_tools": frozenset({"kubelet"})}, ["not built: kubelet.", "scripts/tools.sh servers node"]),
    (
        {"limits": {"fs.inotify.max_user_instances": 64}},
        ["is 64, expected 128 at least: sysctl -w fs.inotify.max_user_instances=512"],
    ),
    ({"open_files": 1024}, ["open files is 1024, expected 8192", "ulimit -Hn 8192"]),
    ({"has_overlayfs": False}, ["modprobe overlay"]),
    ({"controllers": frozenset({"cpu", "pids"})}, ["no cgroup controller cpuset, memory"]),
    ({"room_gb": 49.0}, ["/var/lib/lorarl-cluster has room for 49 GB", "expected 50 GB", "LORARL_CLUSTER_DATA"]),
    ({"foreign": ("the link lorarl0",)}, ["not made by us: the link lorarl0", "LORARL_CLUSTER_NAME"]),
    (
        {"overlapping": (IPv4Network("172.16.0.0/12"),)},
        ["172.30.0.0/30 is in use on this machine (172.16.0.0/12)", "LORARL_CLUSTER_SUBNET"],
    ),
]


def test_a_good_machine_has_no_complaint() -> None:
    assert complaints(GOOD, Settings()) == []


@pytest.mark.parametrize(("change", "words"), BAD)
def test_a_complaint_says_what_was_found_and_the_mend(change: dict[str, Any], words: list[str]) -> None:
    (complaint,) = complaints(dataclasses.replace(GOOD, **change), Settings())
    for word in words:
        assert word in complaint


def test_all_complaints_come_at_once() -> None:
    everything: dict[str, Any] = {}
    for change, _ in BAD:
        everything |= change
    # Missing programs and plugins share a line.
    assert len(complaints(dataclasses.replace(GOOD, **everything), Settings())) == len(BAD) - 1


def test_nobody_else_is_told_more_than_to_be_root() -> None:
    (complaint,) = complaints(dataclasses.replace(GOOD, is_root=False, room_gb=0.0), Settings())
    assert "not root" in complaint


def test_the_packages_of_what_is_missing() -> None:
    facts = dataclasses.replace(
        GOOD, missing_commands=frozenset({"nft", "ip"}), missing_cni_plugins=frozenset({"ptp", "loopback"})
    )
    assert missing_packages(facts) == ["containernetworking-plugins", "iproute2", "nftables"]
