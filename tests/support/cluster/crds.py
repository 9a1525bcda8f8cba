"""Custom resource definitions: applied, and waited for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from support.cluster.client import Object
from support.cluster.control_plane import Cluster

CRD = Path(__file__).parents[3] / "crds/lorarl.io_lorarljobs.yaml"
"""Ours."""
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def install_crds(cluster: Cluster, *paths: Path, version: str | None = None) -> None:
    """Create the definitions in these files, with only one `version` if that is named; their kinds are served when it returns."""
    names = []
    for path in paths:
        definition = yaml.load(path.read_text(), LOADER)
        if version:
            definition["spec"]["versions"] = [one for one in definition["spec"]["versions"] if one["name"] == version]
        names.append(cluster.api.create(definition)["metadata"]["name"])
    wait_until_served(cluster, names)


def wait_until_served(cluster: Cluster, names: list[str]) -> None:
    """Return when all of these definitions are established. (`kubectl wait` fails while a new one has no conditions yet.)"""
    for name in names:
        cluster.api.wait("CustomResourceDefinition", name, None, _is_established, seconds=60)


def _is_established(definition: Object) -> bool:
    conditions = definition.get("status", {}).get("conditions") or []
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)
