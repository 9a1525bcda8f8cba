"""Custom resource definitions: applied, and waited for."""

from __future__ import annotations

from pathlib import Path

from support.cluster.client import Object
from support.cluster.control_plane import Cluster


def install_crds(cluster: Cluster, path: Path) -> None:
    """Apply the definitions in a file or folder; their kinds are served when it returns."""
    applied = cluster.must("apply", "--server-side", "-f", str(path), "-o", "name").split()
    wait_until_served(cluster, [name.split("/")[1] for name in applied])


def wait_until_served(cluster: Cluster, names: list[str]) -> None:
    """Return when all of these definitions are established. (`kubectl wait` fails while a new one has no conditions yet.)"""
    for name in names:
        cluster.api.wait("CustomResourceDefinition", name, None, _is_established, seconds=60)


def _is_established(definition: Object) -> bool:
    conditions = definition.get("status", {}).get("conditions") or []
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)
