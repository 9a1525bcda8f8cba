"""How GitOps tools judge objects, by their own code: kstatus (Flux, helm, kapp), and Argo CD's health scripts."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from typing import Any

from support.cluster.processes import find
from support.helm import CHART

SCRIPT = CHART / "files/argo-cd-health.lua"


def judged(objects: Iterable[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """What kstatus makes of each object, what Argo CD makes of it with the chart's script, and Argo CD's message.

    Raises:
        ToolMissingError: gitops-health is not there.
    """
    lines = "".join(f"{json.dumps(one)}\n" for one in objects)
    done = subprocess.run([find("gitops-health"), SCRIPT], input=lines, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    answers = (line.split(" ", 2) for line in done.stdout.splitlines())
    return [(kstatus, argo, message) for kstatus, argo, message in answers]
