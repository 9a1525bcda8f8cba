"""The job that a run belongs to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Owner:
    """The job that a run belongs to.

    Attributes:
        name: name of the job, and of its folder in the store.
        uid: uid of its LoRARLJob; None outside a cluster.
        cluster: what distinguishes its cluster from others; None outside a cluster, and where it is not known.
    """

    name: str
    uid: str | None = None
    namespace: str | None = None
    cluster: str | None = None

    def __str__(self) -> str:
        """The job for people: `job gsm8k in namespace dev`."""
        return f"job {self.name}" + (f" in namespace {self.namespace}" if self.namespace else "")
