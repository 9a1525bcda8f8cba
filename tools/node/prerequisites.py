"""What a machine must have before a node is brought up on it. `look` gathers facts, and `complaints` judges them."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

from node import cgroups, network
from node.settings import Settings
from support.cluster.processes import CACHE, ToolMissingError, find

# Program -> Debian's package.
COMMANDS = {
    "ip": "iproute2",
    "nft": "nftables",
    "runc": "runc",
    "openssl": "openssl",
    "nsenter": "util-linux",
    "mount": "mount",
}
CNI_PLUGINS = ("ptp", "host-local", "loopback")
CNI_PACKAGE = "containernetworking-plugins"
CNI_FOLDERS = (str(CACHE / "cni"), "/opt/cni/bin", "/usr/lib/cni")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Kernel limit -> the least that a node with KubeRay's pods works with, and what to set it to.
LIMITS = {
    "fs.inotify.max_user_instances": (128, 512),
    "fs.inotify.max_user_watches": (32768, 262144),
}
MIN_OPEN_FILES = 8192
# From linux/capability.h.
CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_CHROOT": 18, "CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21}
CAP_SYS_RESOURCE = 24


@dataclass(frozen=True)
class Facts:
    """What a node needs to know of a machine. Sizes are in GB."""

    is_root: bool
    capabilities: int
    missing_commands: frozenset[str]
    missing_cni_plugins: frozenset[str]
    missing_tools: frozenset[str]
    limits: Mapping[str, int]
    open_files: int
    has_overlayfs: bool
    controllers: frozenset[str]
    room_gb: float
    foreign: tuple[str, ...]
    overlapping: tuple[IPv4Network, ...]


def missing_packages(facts: Facts) -> list[str]:
    """Return the Debian packages of what is missing."""
    return sorted(
        {COMMANDS[command] for command in facts.missing_commands}
        | ({CNI_PACKAGE} if facts.missing_cni_plugins else set())
    )


def complaints(facts: Facts, settings: Settings) -> list[str]:
    """Return everything that keeps the node from running: what was found, what is expected, and what to do."""
    if not facts.is_root:
        return ["this is not root: a node makes network devices, mounts and cgroups. Run it as root."]
    return [*_of_programs(facts), *_of_kernel(facts), *_of_place(facts, settings)]


def _of_programs(facts: Facts) -> Iterator[str]:
    if facts.missing_commands or facts.missing_cni_plugins:
        missing = sorted(facts.missing_commands) + sorted(f"CNI plugin {name}" for name in facts.missing_cni_plugins)
        packages = " ".join(missing_packages(facts))
        yield f"not installed: {', '.join(missing)}. On Debian or Ubuntu: apt-get install {packages}"
    if facts.missing_tools:
        tools = ", ".join(sorted(facts.missing_tools))
        yield f"not built: {tools}. Run scripts/tools.sh servers node, which needs Go."


def _of_kernel(facts: Facts) -> Iterator[str]:
    if lacking := [name for name, bit in CAPABILITIES.items() if not facts.capabilities >> bit & 1]:
        yield f"root without {', '.join(lacking)}: run it outside the container, or with docker run --privileged"
    for name, (least, good) in LIMITS.items():
        if facts.limits.get(name, good) < least:
            yield f"{name} is {facts.limits[name]}, expected {least} at least: sysctl -w {name}={good}"
    if facts.open_files < MIN_OPEN_FILES:
        least = MIN_OPEN_FILES
        yield f"the limit of open files is {facts.open_files}, expected {least} at least: ulimit -Hn {least}"
    if not facts.has_overlayfs:
        yield "the kernel has no overlayfs: run modprobe overlay, or use a kernel that has it"
    if lacking := sorted(cgroups.NEEDED - facts.controllers):
        yield f"no cgroup controller {', '.join(lacking)}: mount them below /sys/fs/cgroup"


def _of_place(facts: Facts, settings: Settings) -> Iterator[str]:
    if facts.room_gb < settings.free_gb:
        yield (
            f"{settings.data} has room for {facts.room_gb:.0f} GB of images and build cache, "
            f"expected {settings.free_gb:g} GB: free some, name a folder on a larger disk (LORARL_CLUSTER_DATA), "
            "or ask for less (LORARL_CLUSTER_FREE_GB)"
        )
    if facts.foreign:
        yield f"in use, and not made by us: {', '.join(facts.foreign)}. Choose another LORARL_CLUSTER_NAME."
    if facts.overlapping:
        routes = ", ".join(str(route) for route in facts.overlapping)
        yield (
            f"{settings.subnet} is in use on this machine ({routes}): "
            "choose another LORARL_CLUSTER_SUBNET, such as 172.31.255.0/30"
        )


def look(settings: Settings, tools: Iterable[str], *, fresh: bool) -> Facts:
    """Return the facts about this machine.

    Args:
        settings: the node that is wanted.
        tools: the programs of scripts/tools.sh that it needs.
        fresh: there is no node of this name, so its names must be free.
    """
    missing_commands = frozenset(command for command in COMMANDS if shutil.which(command, path=search_path()) is None)
    has_ip, has_nft = "ip" not in missing_commands, "nft" not in missing_commands
    foreign = []
    if fresh and network.link_exists(settings):
        foreign.append(f"the link {settings.link}")
    if fresh and has_nft and network.table_exists(settings):
        foreign.append(f"nft's table {settings.name}")
    return Facts(
        is_root=os.geteuid() == 0,
        capabilities=effective_capabilities(),
        missing_commands=missing_commands,
        missing_cni_plugins=frozenset(CNI_PLUGINS) if cni_folder() is None else frozenset(),
        missing_tools=frozenset(_missing_tools(tools)),
        limits={name: value for name in LIMITS if (value := _kernel_limit(name)) is not None},
        open_files=_open_files(),
        has_overlayfs=_has_overlayfs(),
        controllers=frozenset(cgroups.controllers()),
        room_gb=_room(settings),
        foreign=tuple(foreign),
        overlapping=tuple(route for route in network.host_routes() if route.overlaps(settings.subnet))
        if fresh and has_ip
        else (),
    )


def install(packages: list[str]) -> None:
    """Install Debian packages if this machine allows it. What is still missing becomes a complaint."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    if subprocess.run(command, env=environment, capture_output=True, check=False).returncode:
        subprocess.run(["apt-get", "update"], env=environment, capture_output=True, check=False)
        subprocess.run(command, env=environment, capture_output=True, check=False)


def can_install() -> bool:
    """Return whether there is apt-get."""
    return shutil.which("apt-get") is not None


def search_path() -> str:
    """Return PATH with the folders of administrators' programs."""
    return f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"


def cni_folder() -> str | None:
    """Return the folder that has all CNI plugins."""
    return next((folder for folder in CNI_FOLDERS if all(Path(folder, name).exists() for name in CNI_PLUGINS)), None)


def must_have_cni() -> str:
    """Return the folder of the CNI plugins of a machine that was checked."""
    folder = cni_folder()
    assert folder is not None, "checked before"
    return folder


def may_lower_oom_score() -> bool:
    """Return whether runc may give a sandbox the score that kubelet asks for."""
    return bool(effective_capabilities() >> CAP_SYS_RESOURCE & 1)


def effective_capabilities() -> int:
    """Return this process's capabilities, one bit each."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))


def _missing_tools(names: Iterable[str]) -> list[str]:
    missing = []
    for name in names:
        try:
            find(name)
        except ToolMissingError:
            missing.append(name)
    return missing


def _kernel_limit(name: str) -> int | None:
    try:
        return int(Path("/proc/sys", *name.split(".")).read_text())
    except FileNotFoundError:
        return None


def _open_files() -> int:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return hard if hard != resource.RLIM_INFINITY else 1 << 30


def _has_overlayfs() -> bool:
    def known() -> bool:
        return "\toverlay\n" in Path("/proc/filesystems").read_text()

    if not known() and shutil.which("modprobe"):
        subprocess.run(["modprobe", "overlay"], capture_output=True, check=False)
    return known()


def _room(settings: Settings) -> float:
    """Return the free room and what images and build cache already use."""
    folder = settings.data
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / 1e9
    if free >= settings.free_gb or not settings.data.exists():
        return free
    command = ["du", "--summarize", "--one-file-system", "--block-size=1", str(settings.data)]
    used = subprocess.run(command, capture_output=True, text=True, check=False)
    return free + int(used.stdout.split()[0]) / 1e9
