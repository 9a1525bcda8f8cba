"""Clusters as kubectl sees them: what all have in common, and those that are known by their kubeconfig alone."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.cluster.client import Api
from support.cluster.processes import find, free_ports, listens, running, until

PROXY_SECONDS, LONGEST_SECONDS = 20.0, 60.0


class KubectlUser:
    """Something that can be reached by kubectl."""

    @property
    def kubectl_command(self) -> list[str]:
        """kubectl, and the flags that say which cluster and user."""
        raise NotImplementedError

    def kubectl(
        self, *arguments: str, stdin: str | None = None, seconds: float = LONGEST_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator, for so long at most."""
        command = [*self.kubectl_command, *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=seconds)

    def must(self, *arguments: str, stdin: str | None = None, seconds: float = LONGEST_SECONDS) -> str:
        """Run kubectl, which must succeed; what it printed."""
        done = self.kubectl(*arguments, stdin=stdin, seconds=seconds)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout


@dataclass(frozen=True)
class RealCluster(KubectlUser):
    """A cluster with nodes that run pods: `make cluster`'s, kind's, or any other."""

    kubeconfig: Path
    kubectl_path: str
    api: Api

    @property
    def kubectl_command(self) -> list[str]:
        return [self.kubectl_path, f"--kubeconfig={self.kubeconfig}"]


@contextmanager
def real_cluster(kubeconfig: Path, folder: Path) -> Iterator[RealCluster]:
    """The cluster of a kubeconfig with any authentication, which a `kubectl proxy` does. Its log goes to `folder`.

    Raises:
        ToolMissingError: There is no kubectl.
    """
    kubectl = find("kubectl")
    (port,) = free_ports(1)
    with running(
        [kubectl, f"--kubeconfig={kubeconfig}", "proxy", f"--port={port}"], folder / "kubectl-proxy.log"
    ) as proxy:
        until(PROXY_SECONDS, "kubectl proxy listens", lambda: listens(port), proxy)
        yield RealCluster(kubeconfig, kubectl, Api(port))
