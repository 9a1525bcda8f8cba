"""Custom resource definitions: applied, and waited for."""

from __future__ import annotations

import gzip
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from support.cluster.client import ApiError, Object
from support.cluster.control_plane import Cluster
from support.cluster.kubectl import RealCluster
from support.cluster.processes import until

CRD = Path(__file__).parents[3] / "crds/lorarl.io_lorarljobs.yaml"
"""Ours."""
CRDS = [CRD, *sorted(set(CRD.parent.glob("lorarl.io_*.yaml")) - {CRD})]
"""Ours, with those of sweeps, schedules and templates."""
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def install_crds(cluster: Cluster | RealCluster, *paths: Path, version: str | None = None) -> None:
    """Create the definitions in these files, or only their `version`. When it returns, their kinds are served."""
    names = []
    for path in paths:
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        definition = yaml.load(text, LOADER)
        if version:
            definition["spec"]["versions"] = [one for one in definition["spec"]["versions"] if one["name"] == version]
        names.append(cluster.api.create(definition)["metadata"]["name"])
    wait_until_served(cluster, names)


def wait_until_served(cluster: Cluster | RealCluster, names: list[str]) -> None:
    """Return when all of these are established and served. (`kubectl wait` fails while a new one has no conditions.)"""
    for name in names:
        made = cluster.api.wait("CustomResourceDefinition", name, None, _is_established, seconds=60)["spec"]
        # Without a limit: with one, the API server answers before its cache is ready.
        paths = [
            f"/apis/{made['group']}/{one['name']}/{made['names']['plural']}"
            for one in made["versions"]
            if one["served"]
        ]
        until(60, f"{name} is served", partial(_all_answer, cluster, paths))


def _all_answer(cluster: Cluster | RealCluster, paths: list[str]) -> bool:
    return all(_answers(cluster, path) for path in paths)


def _answers(cluster: Cluster | RealCluster, path: str) -> bool:
    try:
        cluster.api.request("GET", path)
    except ApiError:
        return False
    return True


def _is_established(definition: Object) -> bool:
    conditions = definition.get("status", {}).get("conditions") or []
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)
