"""What may be chosen about a node."""

from __future__ import annotations

from ipaddress import IPv4Address
from pathlib import Path

import pytest

from node.errors import SettingsError
from node.settings import Settings, from_environment


def test_without_variables_it_is_the_default() -> None:
    assert from_environment({}) == Settings()
    assert from_environment({"LORARL_CLUSTER_NAME": ""}) == Settings(), "an empty variable is none"


def test_everything_of_a_node_is_called_after_it() -> None:
    other = from_environment({"LORARL_CLUSTER_NAME": "other", "LORARL_CLUSTER_SUBNET": "172.31.0.8/29"})
    assert (other.run, other.data, other.link) == (Path("/run/other-cluster"), Path("/var/lib/other-cluster"), "other0")
    assert (other.host_address, other.node_address) == (IPv4Address("172.31.0.9"), IPv4Address("172.31.0.10"))
    assert other.api_url == "https://172.31.0.10:6443"


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("NAME", "My-Node", "lowercase letters and digits"),
        ("NAME", "averyverylongname", "13 lowercase letters"),
        ("SUBNET", "172.30.0.1/30", "expected a network such as 172.30.0.0/30"),
        ("SUBNET", "172.30.0.0/31", "expected /30 or larger"),
        ("FREE_GB", "lots", "expected a number of GB"),
        ("DRIVER", "/nowhere", "expected the folder of NVIDIA's driver libraries"),
    ],
)
def test_what_is_not_understood_is_named(variable: str, value: str, expected: str) -> None:
    with pytest.raises(SettingsError, match=expected) as error:
        from_environment({f"LORARL_CLUSTER_{variable}": value})
    assert str(error.value).startswith(f"LORARL_CLUSTER_{variable}={value}: ")
