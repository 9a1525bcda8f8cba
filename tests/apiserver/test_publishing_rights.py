"""The command of docs/publishing.md by which an administrator allows it, with the real helm."""

from __future__ import annotations

import shlex

import pytest

from apiserver.chart_site import NAMESPACE, Site, require_rights
from support.cluster import aibrix, kserve
from support.cluster.control_plane import control_plane
from support.cluster.crds import install_crds
from support.cluster.kuberay import install_kuberay
from support.cluster.processes import find, find_share
from support.cluster.tools import tools_or_skip
from support.helm import CHART, helm

PAGE = (CHART.parents[1] / "docs/publishing.md").read_text()


@pytest.mark.long
def test_the_command_gives_the_rights_and_its_end_takes_them(tmp_path_factory: pytest.TempPathFactory) -> None:
    (command,) = (line for line in PAGE.splitlines() if line.startswith("helm upgrade"))
    arguments = [str(CHART) if one == "helm/lorarl" else one for one in shlex.split(command)[1:]]
    with tools_or_skip():
        find("helm")
        find_share("ray-operator")
        with control_plane(tmp_path_factory.mktemp("publishing-rights")) as cluster:
            install_kuberay(cluster)
            install_crds(cluster, aibrix.CRD, kserve.CRD)
            site = Site(cluster, helm("version"), [])
            with site.release({"replicas": 1}):
                kind = "modeladapters.model.aibrix.ai"
                require_rights(site, "list", kind, {"default": False})
                done = site.helm(*arguments)
                assert done.returncode == 0, done.stderr
                for verb in ("create", "list", "patch", "delete"):
                    require_rights(site, verb, kind, {"default": True, NAMESPACE: True})
                for verb in ("get", "update", "deletecollection"):
                    require_rights(site, verb, kind, {"default": False})
                kserve_kind = "llminferenceservices.serving.kserve.io"
                require_rights(site, "list", kserve_kind, {"default": False})
                site.upgrade({"publish.aibrix.enabled": False, "publish.kserve.enabled": True})
                require_rights(site, "list", kind, {"default": False})
                for verb in ("list", "patch"):
                    require_rights(site, verb, kserve_kind, {"default": True, NAMESPACE: True})
                for verb in ("get", "create", "update", "delete"):
                    require_rights(site, verb, kserve_kind, {"default": False})
