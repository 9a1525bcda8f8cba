"""An operator that is newer than the CRDs: it runs jobs, and sweeps as soon as their CRD is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.cluster.client import ApiError
from support.cluster.control_plane import control_plane
from support.cluster.crds import CRD, CRDS, install_crds
from support.cluster.kuberay import install_kuberay
from support.cluster.lorarljobs import lorarljob
from support.cluster.operator import create, operator, prepare, wait_leader
from support.cluster.processes import find_share
from support.cluster.sweeps import KIND, lorarlsweep
from support.cluster.tools import tools_or_skip

SECONDS = 30.0


@pytest.mark.long
def test_the_crd_of_sweeps_may_come_later(tmp_path: Path) -> None:
    with tools_or_skip():
        find_share("ray-operator")
        with control_plane(tmp_path) as cluster:
            older = [one for one in CRDS if "sweeps" not in one.name]
            assert CRD in older and len(older) == len(CRDS) - 1
            install_crds(cluster, *older)
            install_kuberay(cluster)
            kubeconfig = prepare(cluster)
            create(cluster, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
            with operator(cluster, kubeconfig, "early") as one:
                wait_leader(one)
                assert one.probe("/readyz")[0] == one.probe("/healthz")[0] == 200
                cluster.api.create(lorarljob("team", "job"))
                cluster.api.wait("RayJob", "job-1", "team", bool, seconds=SECONDS)
                with pytest.raises(ApiError):
                    cluster.api.list(KIND, "team")
                install_crds(cluster, *(path for path in CRDS if path not in older))
                assert one.process.wait(90) == 0, "it starts again: the kubelet does that"
                assert "the API server has LoRARLSweeps now" in one.process.tail()
            with operator(cluster, kubeconfig, "late") as one:
                wait_leader(one)
                cluster.api.create(lorarlsweep("team", "sums"))
                for number in (0, 1):
                    cluster.api.wait("LoRARLJob", f"sums-seed-{number}", "team", bool, seconds=SECONDS)
                    cluster.api.wait("RayJob", f"sums-seed-{number}-1", "team", bool, seconds=SECONDS)
