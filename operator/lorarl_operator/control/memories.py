"""What the controller remembers about a job: what the cluster has too, and what explains why the job is stuck."""

from __future__ import annotations

from dataclasses import dataclass, field

from lorarl_operator.control.cache import Key
from lorarl_operator.decide.decision import Want
from lorarl_operator.decide.models import Evidence, Refusal


@dataclass(slots=True)
class Memory:
    """What is remembered about the job of this uid."""

    uid: str
    refusals: dict[tuple[str, str], Refusal] = field(default_factory=dict)
    """By kind and name of what the API server refused. One refusal says nothing of another object's."""
    evidence: Evidence | None = None
    evidence_at: float = float("-inf")
    wanted: Want | None = None
    foreign_at: float = float("-inf")
    written: tuple[int, str] | None = None
    """Hash of the last written status, and the job's resourceVersion after that write."""


class Memories:
    """By a job's name. A job that was deleted and applied again is another one: what was refused before may pass."""

    def __init__(self) -> None:
        self._found: dict[Key, Memory] = {}

    def get(self, key: Key, uid: str) -> Memory | None:
        """What is remembered about a job; None if nothing is."""
        found = self._found.get(key)
        return found if found is not None and found.uid == uid else None

    def of(self, key: Key, uid: str) -> Memory:
        """What is remembered about a job from now on."""
        found = self._found[key] = self.get(key, uid) or Memory(uid)
        return found

    def forget(self, key: Key) -> None:
        """Forget a job that is gone."""
        self._found.pop(key, None)
