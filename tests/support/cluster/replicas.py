"""Replicas of our operator that are started again whenever they end, as the pods of a Deployment are."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from support.cluster.control_plane import Cluster
from support.cluster.operator import SYSTEM, launch
from support.cluster.processes import POLL_SECONDS, Process, free_ports

LEASE = "lorarl-operator"


class Replicas:
    """The processes by name, each with its log NAME.log in the cluster's folder."""

    def __init__(self, cluster: Cluster, kubeconfig: Path, names: Collection[str]) -> None:
        self._cluster, self._kubeconfig = cluster, kubeconfig
        self._running: dict[str, Process] = {}
        self._start_at = dict.fromkeys(names, 0.0)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="replicas", daemon=True)
        self.starts = 0

    @property
    def names(self) -> list[str]:
        return list(self._start_at)

    @property
    def leader(self) -> str | None:
        """Who holds the lease, though it may have run out."""
        lease = self._cluster.api.get("Lease", LEASE, SYSTEM)
        holder: str = (lease or {}).get("spec", {}).get("holderIdentity") or ""
        return holder.rsplit("_", 1)[0] or None

    def kill(self, names: Collection[str], *, down_seconds: float = 0.0, lease_runs_out: bool = True) -> None:
        """End these (-9), and keep them down for a while.

        Unless `lease_runs_out`, the lease of a killed leader is released, as if its 15 s were over, to save the wait.
        """
        with self._lock:
            for name in names:
                if process := self._running.pop(name, None):
                    process.kill()
                self._start_at[name] = time.monotonic() + down_seconds
        if not lease_runs_out and self.leader in names:
            self._cluster.api.patch("Lease", LEASE, {"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}}, SYSTEM)

    def run(self) -> None:
        self._keeper.start()

    def stop(self) -> None:
        self._stopping.set()
        self._keeper.join()
        for process in self._running.values():
            process.stop()

    def _keep(self) -> None:
        while not self._stopping.wait(POLL_SECONDS):
            with self._lock:
                for name, start_at in self._start_at.items():
                    process = self._running.get(name)
                    if process is not None and process.ended:
                        del self._running[name]
                        self._start_at[name] = time.monotonic() + 1.0
                    elif process is None and time.monotonic() >= start_at:
                        metrics_port, probes_port = free_ports(2)
                        self._running[name] = launch(self._cluster, self._kubeconfig, name, metrics_port, probes_port)
                        self.starts += 1


@contextmanager
def replicas(cluster: Cluster, kubeconfig: Path, *names: str) -> Iterator[Replicas]:
    """Keep replicas of these names running until the block ends."""
    kept = Replicas(cluster, kubeconfig, names)
    kept.run()
    try:
        yield kept
    finally:
        kept.stop()
