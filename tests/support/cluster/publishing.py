"""What tests of `spec.publish` share: an operator with its rights, jobs that report a best checkpoint, and the page."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager

from lorarl_api.v1alpha1 import LoRARLJobStatus
from support.cluster.audit import account
from support.cluster.client import Object
from support.cluster.control_plane import Cluster
from support.cluster.crds import CRDS, install_crds
from support.cluster.kuberay import install_kuberay
from support.cluster.lorarljobs import condition, report
from support.cluster.operator import ROOT, SYSTEM, operator, prepare, wait_leader
from support.helm import rendered
from support.published import best

ACCOUNT = "operator-lorarl"
"""The name that the chart gives it: the chart's policy for the account applies to these tests."""
OPERATOR = account(SYSTEM, ACCOUNT)
SECONDS = 60.0
"""Patience: after a fault the operator looks again every 20 s."""
PAGE = (ROOT / "docs/publishing.md").read_text()


def install(cluster: Cluster) -> None:
    """Our kinds and KubeRay's, and the chart's policies."""
    install_crds(cluster, *CRDS)
    install_kuberay(cluster)
    for one in (one for one in rendered() if one["kind"].startswith("ValidatingAdmissionPolicy")):
        cluster.must("apply", "-f", "-", stdin=json.dumps(one))


@contextmanager
def leading(cluster: Cluster, name: str = "publishing") -> Iterator[None]:
    with operator(cluster, prepare(cluster, account=ACCOUNT), name) as one:
        wait_leader(one)
        yield


def entry(found: Object, number: int = 0) -> Object:
    published: list[Object] = found.get("status", {}).get("published") or [{}]
    return published[number]


def wait_state(cluster: Cluster, where: str, state: str, reason: str, name: str = "sums", serves: str = "") -> Object:
    """The entry when it is in this state, with what answers then."""

    def holds(found: Object) -> bool:
        one = entry(found)
        return (one.get("state"), one.get("reason"), one.get("serving", "")) == (state, reason, serves)

    found = cluster.api.wait("LoRARLJob", name, where, holds, seconds=SECONDS)
    assert condition(found, "Published")["status"] == str(state == "Serving")
    LoRARLJobStatus.model_validate(found["status"])
    return entry(found)


def reports(cluster: Cluster, where: str, step: int, value: float, name: str = "sums") -> None:
    report(cluster.api, where, name, step=step, totalSteps=100, best=best(step, value))


def from_page(cluster: Cluster, where: str, beginning: str, words: str) -> str:
    """Run the one command of docs/publishing.md that begins so and has these words, in this namespace."""
    lines = [line.partition("  #")[0] for line in PAGE.splitlines()]
    (command,) = (line for line in lines if line.startswith(f"kubectl {beginning}") and words in line)
    return cluster.must(*shlex.split(command)[1:], "-n", where)
