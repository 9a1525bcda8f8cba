"""Files and command lines that the node's programs get."""

from __future__ import annotations

import base64
import dataclasses
import json
import tomllib
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest

from node import configuration, network, programs
from node.pki import certificates, request
from node.settings import POD_GATEWAY, POD_RANGE, SERVICE_RANGE, Settings

SETTINGS = dataclasses.replace(
    Settings(), name="other", run=Path("/run/other"), data=Path("/data"), subnet=IPv4Network("10.9.8.4/30")
)


def test_containerd_lowers_a_score_only_where_it_may() -> None:
    for may_lower in (True, False):
        parsed = tomllib.loads(configuration.containerd(SETTINGS, "/cni", may_lower_oom_score=may_lower))
        runtime = parsed["plugins"]["io.containerd.cri.v1.runtime"]
        assert runtime["restrict_oom_score_adj"] is not may_lower
        assert runtime["cni"] == {"bin_dirs": ["/cni"], "conf_dir": "/run/other/cni"}
        assert parsed["root"] == "/data/containerd"


def test_builds_end_where_kubelet_looks_for_images() -> None:
    worker = tomllib.loads(configuration.buildkitd(SETTINGS))["worker"]["containerd"]
    assert worker["namespace"] == configuration.IMAGE_NAMESPACE
    assert worker["address"] == configuration.CONTAINERD_ADDRESS
    assert worker["defaultCgroupParent"].startswith("/other/")


def test_pods_and_builds_live_in_the_nodes_own_cgroup() -> None:
    kubelet = json.loads(configuration.kubelet(SETTINGS))
    assert kubelet["cgroupRoot"] == "/other"
    assert kubelet["authentication"]["anonymous"] == {"enabled": False}
    assert kubelet["authorization"] == {"mode": "Webhook"}
    assert kubelet["clusterDNS"] == [str(POD_GATEWAY)]


def test_the_ranges_do_not_overlap() -> None:
    second = SETTINGS.second
    ranges = [POD_RANGE, SERVICE_RANGE, Settings().subnet, second.pods, second.subnet]
    assert not any(a.overlaps(b) for a in ranges for b in ranges if a is not b)
    assert json.loads(configuration.cni(SETTINGS))["plugins"][0]["ipam"]["ranges"] == [[{"subnet": str(POD_RANGE)}]]


def test_a_kubeconfig_holds_all_it_needs() -> None:
    parsed = json.loads(configuration.kubeconfig("https://10.9.8.6:6443", b"ca", b"certificate", b"key"))
    assert parsed["clusters"][0]["cluster"]["server"] == "https://10.9.8.6:6443"
    user = parsed["users"][0]["user"]
    assert base64.b64decode(user["client-key-data"]) == b"key"
    assert base64.b64decode(user["client-certificate-data"]) == b"certificate"


@pytest.mark.parametrize(
    ("candidates", "expected"),
    [
        (["search lan\nnameserver 10.0.0.1\n"], "search lan\nnameserver 10.0.0.1\n"),
        (["nameserver 127.0.0.53\noptions edns0\n", "nameserver 10.0.0.1\nnameserver ::1\n"], "nameserver 10.0.0.1\n"),
        (["nameserver fe80::1%eth0\n"], "nameserver fe80::1%eth0\n"),
        (["nameserver\nnameserver dns.lan\n"], "nameserver 1.1.1.1\n"),
        (["nameserver 127.0.0.1\n"], "nameserver 1.1.1.1\n"),
        ([], "nameserver 1.1.1.1\n"),
    ],
)
def test_a_resolver_on_the_hosts_loopback_is_passed_over(candidates: list[str], expected: str) -> None:
    assert configuration.node_resolv_conf(candidates) == expected


def test_every_program_has_a_command_line_of_its_own_tool() -> None:
    commands = programs.commands(SETTINGS, {name: f"/bin/{name}" for name in programs.ALL})
    assert set(commands) == set(programs.ALL) - {programs.DEVICE_PLUGIN}
    assert all(command[0] == f"/bin/{name}" for name, command in commands.items())
    apiserver = commands["kube-apiserver"]
    assert "--authorization-mode=Node,RBAC" in apiserver
    assert "--advertise-address=10.9.8.6" in apiserver


def test_a_node_with_a_driver_has_a_device_plugin() -> None:
    """A node that builds nothing has no BuildKit."""
    travelled = dataclasses.replace(SETTINGS, builds=False, driver=Path("/usr/local/nvidia/lib64"))
    assert set(programs.of(travelled)) == set(programs.ALL) - {"buildkitd"}
    assert set(programs.commands(travelled, {name: name for name in programs.ALL})) == set(programs.of(travelled))


def test_every_file_that_a_command_names_is_one_that_is_made() -> None:
    made = {f"{certificate.name}.{kind}" for certificate in certificates(SETTINGS) for kind in ("crt", "key")}
    made |= {"ca.crt", "ca.key", "front-proxy-ca.crt", "service-account.key", "service-account.pub"}
    words = [
        word
        for command in programs.commands(SETTINGS, {name: name for name in programs.ALL}).values()
        for word in command
    ]
    named = {word.partition("=")[2] for word in words if f"={SETTINGS.pki}/" in word}
    assert named
    assert {Path(path).name for path in named} <= made


def test_certificates_name_who_they_are_for() -> None:
    by_name = {certificate.name: certificate for certificate in certificates(SETTINGS)}
    assert by_name["kubelet"].subject == "/O=system:nodes/CN=system:node:node-0"
    assert "IP:10.9.8.6" in by_name["kube-apiserver"].alternative_names
    assert "subjectAltName=IP:10.9.8.6,DNS:node-0" in request(by_name["kubelet"])
    assert [c.name for c in by_name.values() if c.authority != "ca"] == ["front-proxy-client"]


def test_the_device_for_outbound_traffic_is_the_default_routes() -> None:
    routes = [{"dst": "default", "dev": "ens5"}, {"dst": "default", "dev": "wlan0"}]
    assert network.outbound_device(SETTINGS, routes) == "ens5"
    assert network.outbound_device(SETTINGS, []) is None
    assert network.outbound_device(dataclasses.replace(SETTINGS, outbound="none"), routes) is None
    assert network.outbound_device(dataclasses.replace(SETTINGS, outbound="bond0"), routes) == "bond0"


def test_only_the_node_itself_is_let_out() -> None:
    assert 'ip saddr 10.9.8.6 oifname "ens5" masquerade' in network.masquerade(SETTINGS, "ens5")
    assert f'ip saddr {POD_RANGE} oifname "uplink" reject' in network.pods_stay_inside(SETTINGS)
    assert "address add 10.9.8.5/30 dev other0" in network.on_the_host(SETTINGS, 42, 1400)
    assert "mtu 1400" in network.in_the_node(SETTINGS, 1400)
    assert SETTINGS.host_address == IPv4Address("10.9.8.5")


def test_the_last_node_puts_forwarding_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes on a machine that forwarded nothing: whichever goes first, it is off only when both are gone."""
    forwarding = tmp_path / "ip_forward"
    monkeypatch.setattr(network, "IP_FORWARD", forwarding)
    first, second = (
        dataclasses.replace(SETTINGS, name=name, run=tmp_path / f"{name}-cluster") for name in ("first", "second")
    )
    for gone, stays in ((first, second), (second, first)):
        forwarding.write_text("0\n")
        for node in (first, second):
            node.run.mkdir(exist_ok=True)
            network.switch_forwarding_on(node)
        assert forwarding.read_text() == "1\n"
        network.restore_forwarding(gone)
        assert forwarding.read_text() == "1\n"
        network.restore_forwarding(stays)
        assert forwarding.read_text() == "0\n"
        network.restore_forwarding(stays)  # once is enough
        assert forwarding.read_text() == "0\n"
