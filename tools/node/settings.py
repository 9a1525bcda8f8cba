"""What may be chosen about a node, and where its things lie.

A node has a name. Everything of it that others can see is called after it (link, cgroup, table of nft, folders), so that two nodes can
live on one machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from node.errors import SettingsError

REPOSITORY = Path(__file__).resolve().parents[2]
NODE = "node-0"
# Ranges that exist inside the node's network namespace only.
POD_RANGE = IPv4Network("10.244.0.0/24")
POD_GATEWAY = POD_RANGE[1]  # where CoreDNS listens
SERVICE_RANGE = IPv4Network("10.96.0.0/16")
API_SERVICE = SERVICE_RANGE[1]
DOMAIN = "cluster.local"
LINK_RANGE = IPv4Network("172.30.0.0/30")  # of host and node
UPLINK = "uplink"  # the link to the host, as it is called inside
NVML = "libnvidia-ml.so.1"  # by which NVIDIA's programs talk to the driver
MAX_NAME = 13  # a link's name has 15 characters at most


@dataclass(frozen=True)
class Settings:
    """One node. Sizes are in GB (10^9 bytes)."""

    name: str = "lorarl"
    run: Path = Path("/run/lorarl-cluster")  # sockets, configuration, keys
    data: Path = Path(
        "/var/lib/lorarl-cluster"
    )  # what is on disk: the node's own (removed with it), images and build cache (kept)
    out: Path = REPOSITORY / "out/cluster"  # kubeconfig and logs
    subnet: IPv4Network = LINK_RANGE  # the link between host and node
    outbound: str = (
        "auto"  # the device through which image builds and pulls reach the world; auto: the default route's; none
    )
    free_gb: float = 50.0  # the room for images and build cache together
    install: bool = True  # whether missing Debian packages are installed
    builds: bool = True  # whether there is BuildKit; a node whose images are brought to it needs none
    driver: Path | None = (
        None  # the folder of NVIDIA's driver libraries: with it NVIDIA's device plugin runs, and pods can have GPUs
    )

    @property
    def host_address(self) -> IPv4Address:
        return self.subnet[1]

    @property
    def node_address(self) -> IPv4Address:
        return self.subnet[2]

    @property
    def link(self) -> str:
        """The link to the node, as the host sees it."""
        return f"{self.name}0"

    @property
    def api_url(self) -> str:
        return f"https://{self.node_address}:6443"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.out / "kubeconfig"

    @property
    def logs(self) -> Path:
        """One file a program. They stay when the node is gone, until the next one is brought up."""
        return self.out / "logs"

    @property
    def pki(self) -> Path:
        return self.run / "pki"

    @property
    def volatile(self) -> Path:
        """What lies on disk and goes with the node: etcd's data, pods' volumes and logs."""
        return self.data / "node"

    @property
    def containerd_socket(self) -> Path:
        return self.run / "containerd/containerd.sock"

    @property
    def buildkit_socket(self) -> Path:
        return self.run / "buildkit/buildkitd.sock"


def from_environment(environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings that LORARL_CLUSTER_* variables ask for.

    Raises:
        SettingsError: A value is not understood; the text names the variable, the value and what was expected.
    """

    def value(key: str, default: str) -> str:
        return environment.get(f"LORARL_CLUSTER_{key}") or default

    name = value("NAME", Settings.name)
    if not name.isalnum() or not name.islower() or len(name) > MAX_NAME:
        raise SettingsError(
            f"LORARL_CLUSTER_NAME={name}: expected {MAX_NAME} small letters and digits at most, as in lorarl"
        )
    return Settings(
        name=name,
        run=Path(value("RUN", f"/run/{name}-cluster")),
        data=Path(value("DATA", f"/var/lib/{name}-cluster")),
        out=Path(value("OUT", str(Settings.out))).resolve(),
        subnet=_subnet(value("SUBNET", str(Settings.subnet))),
        outbound=value("OUTBOUND", Settings.outbound),
        free_gb=_gigabytes(value("FREE_GB", str(Settings.free_gb))),
        install=value("INSTALL", "1") != "0",
        builds=value("BUILDS", "1") != "0",
        driver=_driver(value("DRIVER", "")),
    )


def _subnet(text: str) -> IPv4Network:
    try:
        subnet = IPv4Network(text)
    except ValueError as error:
        raise SettingsError(
            f"LORARL_CLUSTER_SUBNET={text}: {error}; expected a network as in {Settings.subnet}"
        ) from None
    if subnet.prefixlen > 30:
        raise SettingsError(
            f"LORARL_CLUSTER_SUBNET={text}: too small; expected /30 or larger, for a host's and a node's address"
        )
    return subnet


def _driver(text: str) -> Path | None:
    if not text:
        return None
    if not Path(text, NVML).exists():
        raise SettingsError(
            f"LORARL_CLUSTER_DRIVER={text}: {NVML} is not there; expected the folder of NVIDIA's driver libraries"
        )
    return Path(text)


def _gigabytes(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise SettingsError(f"LORARL_CLUSTER_FREE_GB={text}: expected a number of GB, as in 50") from None
