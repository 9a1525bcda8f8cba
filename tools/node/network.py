"""The node's network: one link to the host, address translation for image builds, and no way out for pods.

The input of `ip` and `nft` is made as text; `connect` and `disconnect` run them.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from node.errors import NodeError
from node.namespaces import Init
from node.settings import POD_GATEWAY, POD_RANGE, SECOND_LINK, UPLINK, Settings

MAX_MTU = 1500
IP_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
# In the node's folder: the value of ip_forward before it was switched on.
FORWARD_BEFORE = "ip_forward.before"


def connect(settings: Settings, init: Init) -> None:
    """Link host and node; with a device for outbound traffic, let the node use it."""
    device = outbound_device(settings, _ip_json("route", "show", "default"))
    mtu = min(MAX_MTU, int(Path(f"/sys/class/net/{device}/mtu").read_text())) if device else MAX_MTU
    _feed(["ip", "-batch", "-"], on_the_host(settings, init.pid, mtu))
    inside = ["nsenter", f"--net=/proc/{init.pid}/ns/net"]
    _feed([*inside, "ip", "-batch", "-"], in_the_node(settings, mtu))
    _feed([*inside, "nft", "-f", "-"], pods_stay_inside(settings))
    _feed([*inside, "tee", str(IP_FORWARD)], "1\n")
    if device:
        switch_forwarding_on(settings)
        _feed(["nft", "-f", "-"], masquerade(settings, device))


def disconnect(settings: Settings) -> None:
    """Undo `connect`, as far as it went."""
    if link_exists(settings):
        # It may be vanishing by itself.
        subprocess.run(["ip", "link", "delete", settings.link], check=False, capture_output=True)
    if table_exists(settings):
        subprocess.run(["nft", "delete", "table", "ip", settings.name], check=True)
    restore_forwarding(settings)


def connect_second(first: Init, second: Init, settings: Settings) -> None:
    """Link a second node with the first, which is its way to everything."""
    inside = ["nsenter", f"--net=/proc/{first.pid}/ns/net"]
    _feed([*inside, "ip", "-batch", "-"], to_the_second(settings, second.pid))
    inside = ["nsenter", f"--net=/proc/{second.pid}/ns/net"]
    _feed([*inside, "ip", "-batch", "-"], in_the_second(settings))
    _feed([*inside, "tee", str(IP_FORWARD)], "1\n")


def to_the_second(settings: Settings, init_pid: int) -> str:
    """Return the input of `ip -batch` in the first node."""
    prefix = settings.subnet.prefixlen
    return f"""link add {SECOND_LINK} type veth peer name {UPLINK} netns {init_pid}
address add {settings.host_address}/{prefix} dev {SECOND_LINK}
link set {SECOND_LINK} up
route add {settings.pods} via {settings.node_address}
"""


def in_the_second(settings: Settings) -> str:
    """Return the input of `ip -batch` in the second node."""
    return f"""link set lo up
address add {settings.node_address}/{settings.subnet.prefixlen} dev {UPLINK}
link set {UPLINK} up
route add default via {settings.host_address}
"""


def link_exists(settings: Settings) -> bool:
    """Return whether the host has the link."""
    return Path(f"/sys/class/net/{settings.link}").exists()


def table_exists(settings: Settings) -> bool:
    """Return whether the host has the nft table."""
    command = ["nft", "list", "table", "ip", settings.name]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def host_routes() -> list[IPv4Network]:
    """Return the networks that the host has routes to, without the default route."""
    destinations = (route["dst"] for route in _ip_json("route", "show") if route["dst"] != "default")
    return [IPv4Network(destination) for destination in destinations]


def outbound_device(settings: Settings, default_routes: Iterable[dict[str, Any]]) -> str | None:
    """Return the host's device for outbound traffic, or None."""
    if settings.outbound == "none":
        return None
    if settings.outbound != "auto":
        return settings.outbound
    return next((route["dev"] for route in default_routes), None)


def on_the_host(settings: Settings, init_pid: int, mtu: int) -> str:
    """Return the input of `ip -batch` on the host."""
    prefix = settings.subnet.prefixlen
    return f"""link add {settings.link} mtu {mtu} type veth peer name {UPLINK} mtu {mtu} netns {init_pid}
address add {settings.host_address}/{prefix} dev {settings.link}
link set {settings.link} up
"""


def in_the_node(settings: Settings, mtu: int) -> str:
    """Return the input of `ip -batch` in the node. CoreDNS listens on loopback, which exists before the first pod."""
    return f"""link set lo up
address add {POD_GATEWAY}/32 dev lo
address add {settings.node_address}/{settings.subnet.prefixlen} dev {UPLINK}
link set {UPLINK} mtu {mtu} up
route add default via {settings.host_address}
"""


def pods_stay_inside(settings: Settings) -> str:
    """Return the input of `nft -f` in the node. Pods reach each other, Services and the node; the host NodePorts."""
    return f"""table ip {settings.name} {{
  chain forward {{
    type filter hook forward priority filter;
    ct state established,related accept
    ip saddr {POD_RANGE} oifname "{UPLINK}" reject with icmp admin-prohibited
    iifname "{SECOND_LINK}" oifname "{UPLINK}" reject with icmp admin-prohibited
  }}
}}
"""


def masquerade(settings: Settings, device: str) -> str:
    """Return the input of `nft -f` on the host: traffic of builds and pulls leaves with the host's address."""
    return f"""table ip {settings.name} {{
  chain postrouting {{
    type nat hook postrouting priority srcnat;
    ip saddr {settings.node_address} oifname "{device}" masquerade
  }}
}}
"""


def switch_forwarding_on(settings: Settings) -> None:
    """Let the host's kernel forward, and note the value before."""
    note = settings.run / FORWARD_BEFORE
    if not note.exists():
        note.write_text(IP_FORWARD.read_text())
    IP_FORWARD.write_text("1\n")


def restore_forwarding(settings: Settings) -> None:
    """Restore the host's setting, unless another node needs it."""
    note = settings.run / FORWARD_BEFORE
    if not note.exists():
        return
    others = [path for path in settings.run.parent.glob(f"*/{FORWARD_BEFORE}") if path != note]
    if others:
        # Another node still needs it, and restores it for us. It had noted our value, or an older one.
        others[0].write_text(min(note.read_text(), others[0].read_text()))
    else:
        IP_FORWARD.write_text(note.read_text())
    note.unlink()


def _feed(command: list[str], text: str) -> None:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NodeError(f"{' '.join(command)}: {done.stderr.strip()}\n{text}")


def _ip_json(*arguments: str) -> list[dict[str, Any]]:
    done = subprocess.run(["ip", "-4", "-json", *arguments], capture_output=True, text=True, check=True)
    routes: list[dict[str, Any]] = json.loads(done.stdout or "[]")
    return routes
