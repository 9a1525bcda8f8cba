"""Jobs in a cluster: the manifest goes to the API server, and the job's record comes back as a run."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Self

from lorarl.job import JobLike, assignments, source_of
from lorarl.run import Run
from lorarl_api.faults import ManifestError
from lorarl_api.load import assign, documents, load_job
from lorarl_api.pod_overrides import override_faults
from lorarl_trainer.cli.kubectl.api import Kubectl
from lorarl_trainer.cli.kubectl.source import find_source, kubectl
from lorarl_trainer.cli.kubectl.why import status_lines
from lorarl_trainer.errors import LorarlError

LOOK_SECONDS = 2.0
"""How often `ClusterJob.wait` asks the API server."""


class Client:
    """A namespace of a cluster, with the rights of the user's own kubectl."""

    def __init__(
        self, namespace: str | None = None, *, context: str | None = None, kubeconfig: str | Path | None = None
    ) -> None:
        """Each of them as of kubectl; None for kubectl's own choice."""
        self._api = kubectl(namespace, context, str(kubeconfig) if kubeconfig else None)

    def submit(self, job: JobLike, overrides: Mapping[str, Any] | None = None) -> ClusterJob:
        """Create a job, or update it, as `kubectl apply` does.

        Its rows and rewards must be where pods find them: in a store, a ConfigMap, or the image.

        Args:
            job: the path of a manifest, its text in YAML, the manifest as a dict, or a checked job.
            overrides: other fields: {"spec.trainer.steps": 20}.

        Raises:
            ManifestError: the manifest has faults. The error has all of them.
            LorarlError: kubectl or the API server refuses it. The message is their own.
        """
        source, changes = source_of(job), assignments(overrides or {})
        if broken := override_faults(load_job(source, changes)):
            raise ManifestError(broken)
        document = deepcopy(documents(source)[0])
        assign(document, changes)
        return _of(self._api.apply(document), self._api)

    def job(self, name: str) -> ClusterJob:
        """Return a job that is there already. Raises LorarlError if there is none."""
        return _of(self._api.job(name), self._api)


def _of(found: Mapping[str, Any], api: Kubectl) -> ClusterJob:
    about = found["metadata"]
    return ClusterJob(about["name"], Kubectl((*api.flags, f"--namespace={about['namespace']}")))


class ClusterJob:
    """A LoRARLJob in a cluster. All that it shows is asked for again."""

    def __init__(self, name: str, api: Kubectl) -> None:
        """Name a job of the namespace that `api` asks."""
        self.name, self._api = name, api
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def status(self) -> dict[str, Any]:
        """The job's status, as docs/reference.md lists it; empty before the operator has seen the job."""
        found: dict[str, Any] = self._api.job(self.name).get("status") or {}
        return found

    @property
    def phase(self) -> str:
        """The job's phase in one word, such as Running."""
        return str(self.status.get("phase", "Pending"))

    @property
    def run(self) -> Run:
        """The job's runs as one: metrics and curves, from the record in the checkpoints' store.

        Raises:
            LorarlError: there is no record yet, or its store cannot be used from here.
        """
        self._folder = self._folder or tempfile.TemporaryDirectory(prefix="lorarl-")
        folder = Path(self._folder.name, self.name)
        find_source(self.name, None, self._api).record.fetch(folder)
        return Run(folder)

    def wait(self, timeout: float | None = None) -> Self:
        """Print each change of phase and step until the job has ended. Ctrl-C ends the waiting alone.

        Args:
            timeout: the longest wait in seconds; None for as long as it takes.

        Raises:
            LorarlError: the job failed, or it is gone.
            TimeoutError: it has not ended yet.
        """
        began, said = time.monotonic(), ""
        while True:
            job = self._api.job(self.name)
            heading, *reasons = status_lines(job)
            if heading != said:
                print(heading, flush=True)
                said = heading
            phase = (job.get("status") or {}).get("phase")
            if phase == "Succeeded":
                return self
            if phase == "Failed":
                raise LorarlError("\n".join([heading, *reasons]))
            if timeout is not None and time.monotonic() - began >= timeout:
                raise TimeoutError("\n".join([f"after {timeout:g} s: {heading}", *reasons]))
            time.sleep(LOOK_SECONDS)

    def delete(self) -> None:
        """Delete the job, as `kubectl delete` does. What becomes of its checkpoints, the manifest says."""
        self._api.delete(self.name)

    def __repr__(self) -> str:
        """Return what the status says, with its reasons."""
        return "\n".join(status_lines(self._api.job(self.name)))
