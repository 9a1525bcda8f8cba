"""What can be chosen about a node, and where its files are.

A node has a name. Everything of it that others can see has that name (link, cgroup, nft table, folders), so that two
nodes can run on one machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from node.errors import SettingsError

REPOSITORY = Path(__file__).resolve().parents[2]
NODE, SECOND_NODE = "node-0", "node-1"
# Ranges that exist only in the node's network namespace.
POD_RANGE = IPv4Network("10.244.0.0/24")
POD_GATEWAY = POD_RANGE[1]  # where CoreDNS listens
SECOND_POD_RANGE = IPv4Network("10.244.1.0/24")
SECOND_LINK_RANGE = IPv4Network("10.244.255.0/30")
SERVICE_RANGE = IPv4Network("10.96.0.0/16")
API_SERVICE = SERVICE_RANGE[1]
DOMAIN = "cluster.local"
LINK_RANGE = IPv4Network("172.30.0.0/30")  # addresses of host and node
UPLINK = "uplink"  # the name of the link to the host inside the node, and of that to the first node in a second one
SECOND_LINK = "second"  # the name of the link to a second node inside the first one
NVML = "libnvidia-ml.so.1"  # how NVIDIA's programs talk to the driver
MAX_NAME = 13  # a link's name has 15 characters at most
# Where programs insist on having files -> the folder that is mounted there, in `run` or in the volatile folder.
PLACES_IN_RUN = {"/run/containerd": "containerd", "/var/lib/cni": "cni-state"}
PLACES_ON_DISK = {"/var/lib/kubelet": "kubelet", "/var/log/pods": "pods", "/var/log/containers": "containers"}


@dataclass(frozen=True)
class Settings:
    """One node.

    Attributes:
        name: of everything that others can see.
        run: folder of sockets, configuration and keys.
        data: folder on disk. It has the node's own files, which are removed with it, and images and build cache, which
            are kept.
        out: folder of kubeconfig and logs.
        subnet: addresses of the link between host and node.
        outbound: the device for image builds and pulls; `auto` for the default route's, or `none`.
        free_gb: the room that images and build cache need together, in GB (10^9 bytes).
        install: whether missing Debian packages are installed.
        builds: whether there is BuildKit. A node whose images are brought to it needs none.
        driver: folder of NVIDIA's driver libraries. With it, NVIDIA's device plugin runs and pods can have GPUs.
        hostname: of the node in its cluster.
        pods: addresses of its pods.
    """

    name: str = "lorarl"
    run: Path = Path("/run/lorarl-cluster")
    data: Path = Path("/var/lib/lorarl-cluster")
    out: Path = REPOSITORY / "out/cluster"
    subnet: IPv4Network = LINK_RANGE
    outbound: str = "auto"
    free_gb: float = 50.0
    install: bool = True
    builds: bool = True
    driver: Path | None = None
    hostname: str = NODE
    pods: IPv4Network = POD_RANGE

    @property
    def second(self) -> Settings:
        """A second node of this node's cluster. It is below the folders of the first, which keep its images too."""
        return replace(
            self,
            name=f"{self.name}-second",
            run=self.run / "second",
            data=self.data / "second",
            out=self.out / "second",
            subnet=SECOND_LINK_RANGE,
            outbound="none",
            builds=False,
            driver=None,
            hostname=SECOND_NODE,
            pods=SECOND_POD_RANGE,
        )

    @property
    def is_second(self) -> bool:
        """Whether it has joined the cluster of another node."""
        return self.hostname != NODE

    @property
    def host_address(self) -> IPv4Address:
        """The host's end of the link; for a second node, that of the first."""
        return self.subnet[1]

    @property
    def node_address(self) -> IPv4Address:
        """The node's end of the link."""
        return self.subnet[2]

    @property
    def link(self) -> str:
        """The name of the link to the node on the host."""
        return f"{self.name}0"

    @property
    def api_url(self) -> str:
        """Where the API server is reached."""
        return f"https://{self.node_address}:6443"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.out / "kubeconfig"

    @property
    def logs(self) -> Path:
        """One file per program. They stay after the node, until the next one is brought up."""
        return self.out / "logs"

    @property
    def pki(self) -> Path:
        """Keys and certificates."""
        return self.run / "pki"

    @property
    def volatile(self) -> Path:
        """Files on disk that are removed with the node: etcd's data, pods' volumes and logs."""
        return self.data / "node"

    @property
    def places(self) -> dict[str, Path]:
        """Where programs insist on having files -> the node's folder that is mounted there."""
        in_run = {place: self.run / name for place, name in PLACES_IN_RUN.items()}
        return in_run | {place: self.volatile / name for place, name in PLACES_ON_DISK.items()}

    @property
    def containerd_socket(self) -> Path:
        """Where containerd answers."""
        return self.run / "containerd/containerd.sock"

    @property
    def buildkit_socket(self) -> Path:
        """Where BuildKit answers."""
        return self.run / "buildkit/buildkitd.sock"


def from_environment(environment: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings that LORARL_CLUSTER_* variables ask for.

    Raises:
        SettingsError: a value is invalid. The text names the variable, the value and what was expected.
    """

    def value(key: str, default: str) -> str:
        return environment.get(f"LORARL_CLUSTER_{key}") or default

    name = value("NAME", Settings.name)
    if not name.isalnum() or not name.islower() or len(name) > MAX_NAME:
        raise SettingsError(
            f"LORARL_CLUSTER_NAME={name}: expected at most {MAX_NAME} lowercase letters and digits, such as lorarl"
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
            f"LORARL_CLUSTER_SUBNET={text}: {error}; expected a network such as {Settings.subnet}"
        ) from None
    if subnet.prefixlen > 30:
        raise SettingsError(
            f"LORARL_CLUSTER_SUBNET={text}: too small; expected /30 or larger, for the addresses of host and node"
        )
    return subnet


def _driver(text: str) -> Path | None:
    if not text:
        return None
    if not Path(text, NVML).exists():
        raise SettingsError(
            f"LORARL_CLUSTER_DRIVER={text}: has no {NVML}; expected the folder of NVIDIA's driver libraries"
        )
    return Path(text)


def _gigabytes(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise SettingsError(f"LORARL_CLUSTER_FREE_GB={text}: expected a number of GB, such as 50") from None
