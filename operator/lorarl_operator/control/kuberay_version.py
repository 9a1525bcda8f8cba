"""Which version of KubeRay runs the pods: it writes it into the head's environment."""

from __future__ import annotations

import logging
import re
from typing import Any

TESTED = ("1.6", "1.7")
"""The minor versions that the tests run: see the table of versions in docs/operator.md."""
_TAGS = "RAY_USAGE_STATS_EXTRA_TAGS"
_VERSION = re.compile(r"kuberay_version=v?([^;\s]+)")

log = logging.getLogger(__name__)


def kuberay_version(pod: dict[str, Any]) -> str:
    """The version of KubeRay that created a head's pod; empty if it does not say so."""
    variables = (
        one for container in (pod.get("spec") or {}).get("containers") or () for one in container.get("env") or ()
    )
    tags = next((str(one.get("value") or "") for one in variables if one.get("name") == _TAGS), "")
    found = _VERSION.search(tags)
    return found[1] if found else ""


class VersionLog:
    """Logs each version once, when a pod shows it for the first time."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._known: set[str] = set()

    def note(self, pod: dict[str, Any]) -> None:
        """Look at a pod."""
        version = kuberay_version(pod)
        if not version or version in self._known:
            return
        self._known.add(version)
        if ".".join(version.split(".")[:2]) in TESTED:
            log.info("KubeRay %s runs the pods", version)
        else:
            tested = " and ".join(TESTED)
            log.warning("KubeRay %s runs the pods, and this version of lorarl is tested with %s", version, tested)
