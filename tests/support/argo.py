"""examples/pipelines/argo.yaml as Argo Workflows runs it: its templates, and Argo's own executor.

What Argo's controller does, `substituted` does; all that a pod of a `resource` template does is done by argoexec.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from support.cluster.processes import find, until

EXAMPLE = Path(__file__).parents[2] / "examples/pipelines/argo.yaml"
RIGHTS = EXAMPLE.with_name("argo-rights.yaml")
ACCOUNT = "lorarl-pipeline"
PATIENCE = 60.0
STAGED = Path("/tmp/manifest.yaml")
"""Where argoexec writes the manifest for its kubectl. In a pod it is alone with this name."""
NOT_YET = "Neither success condition nor the failure condition has been matched"


def substituted(name: str, workflow: str, uid: str | None = None, **inputs: str) -> dict[str, Any]:
    """A template of the example with its parameters.

    With the `uid` of a workflow, the object is owned by it if the template says so: as executeResource of Argo's
    workflow/controller/operator.go writes it.
    """
    (template,) = (one for one in yaml.safe_load(EXAMPLE.read_text())["spec"]["templates"] if one["name"] == name)
    values = {"workflow.name": workflow} | {f"inputs.parameters.{key}": value for key, value in inputs.items()}
    text = re.sub(r"\{\{([\w.]+)\}\}", lambda found: values[found[1]], json.dumps(template))
    made: dict[str, Any] = json.loads(text)
    if uid and made["resource"].get("setOwnerReference"):
        manifest = yaml.safe_load(made["resource"]["manifest"])
        owner = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": workflow, "uid": uid}
        manifest["metadata"]["ownerReferences"] = [{**owner, "controller": True, "blockOwnerDeletion": True}]
        made["resource"]["manifest"] = yaml.safe_dump(manifest)
    return made


class Step:
    """A pod of a step: a process of argoexec. It looks at the object five times a second."""

    def __init__(self, folder: Path, kubeconfig: Path, template: dict[str, Any], workflow: str, uid: str) -> None:
        self.node = f"{workflow}-{template['name']}"
        self._log = folder / f"{self.node}-{len(list(folder.glob('*.log')))}.log"
        environment = os.environ | {
            "KUBECONFIG": str(kubeconfig),
            "ARGO_TEMPLATE": json.dumps(template),
            "ARGO_POD_NAME": self.node,
            "ARGO_NODE_ID": self.node,
            "ARGO_WORKFLOW_NAME": workflow,
            "ARGO_WORKFLOW_UID": uid,
            "ARGO_DEADLINE": "0001-01-01T00:00:00Z",
            "RESOURCE_STATE_CHECK_INTERVAL": "200ms",
        }
        command = [find("argoexec"), "resource", template["resource"]["action"], "--loglevel", "debug"]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)

    @property
    def said(self) -> str:
        return self._log.read_text()

    def wait_log(self, text: str, times: int = 1) -> None:
        """Return when the executor has logged this, so often."""
        until(PATIENCE, f"argoexec says {text}", lambda: self.said.count(text) >= times)

    def ends(self) -> int:
        """Its exit code."""
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        """Lose the pod."""
        self.process.kill()
        self.process.wait()


@contextmanager
def alone() -> Iterator[None]:
    """Keep other tests of this machine from the place of the manifest."""
    with STAGED.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            STAGED.unlink(missing_ok=True)
