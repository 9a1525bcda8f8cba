"""The real helm, and what it makes of the chart."""

from __future__ import annotations

import copy
import functools
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import yaml

from support.cluster.processes import find

CHART = Path(__file__).parents[2] / "helm/lorarl"
TIMEOUT_SECONDS = 120

Object = dict[str, Any]


def helm(*arguments: str, kubeconfig: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run helm; without a kubeconfig it meets no cluster at all.

    Raises:
        ToolMissingError: helm is not there.
    """
    command = [find("helm"), *arguments]
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig or "/dev/null")}
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, env=environment)


def flags(values: dict[str, Any]) -> list[str]:
    """Values as helm takes them on the command line: `metrics.port` and its JSON."""
    return [part for path, value in values.items() for part in ("--set-json", f"{path}={json.dumps(value)}")]


def rendered(
    values: dict[str, Any] | None = None, *, release: str = "lorarl", namespace: str = "lorarl-system"
) -> list[Object]:
    """The objects that `helm template` makes, in helm's order."""
    return copy.deepcopy(_rendered(release, namespace, *flags(values or {})))


@functools.cache
def _rendered(release: str, namespace: str, *arguments: str) -> list[Object]:
    done = helm("template", release, str(CHART), "--namespace", namespace, *arguments)
    assert done.returncode == 0, done.stderr
    # The C loader: the CRD alone takes Python's a second.
    return [document for document in yaml.load_all(done.stdout, yaml.CSafeLoader) if document]


def refusal(values: dict[str, Any]) -> str:
    """What `helm template` says against these values."""
    done = helm("template", "lorarl", str(CHART), *flags(values))
    assert done.returncode != 0, f"helm took {values}"
    return done.stderr


def only(objects: list[Object], kind: str, name: str | None = None) -> Object:
    """The one object of a kind."""
    (found,) = (one for one in objects if one["kind"] == kind and name in (None, one["metadata"]["name"]))
    return found


def of(objects: list[Object], kind: str) -> list[Object]:
    """The objects of a kind."""
    return [one for one in objects if one["kind"] == kind]
