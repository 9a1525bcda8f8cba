"""What servers have of a job's versions, why they could not be asked, and what may be done about it.

`Servers` is the seam between the decision, which is the same for all targets of `spec.publish`, and their objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from lorarl_api.v1alpha1 import PublishedVersion, PublishSpec, TargetName
from lorarl_operator.decide.decision import Manifest
from lorarl_operator.decide.publish_reasons import Publishing


@dataclass(frozen=True, slots=True)
class Item:
    """A version as the servers have it.

    Attributes:
        entry: Name of the entry of spec.publish that it belongs to.
        target: Whose servers they are.
        place: Where it is there, as `Servers.place` names the place of an entry.
        version: What was recorded when it was created; None if that cannot be read.
        answers: Whether a server answers with it.
        ready: Whether all servers do that should.
        failed: Why it cannot be loaded; empty if nothing says so.
        text: How far it is, for people.
        going: Whether its removal was requested.
    """

    entry: str
    target: TargetName
    place: str
    model: str
    version: PublishedVersion | None
    answers: bool
    ready: bool
    failed: str
    text: str
    going: bool

    @property
    def at(self) -> tuple[TargetName, str]:
        """Where it is, among all targets."""
        return self.target, self.place


@dataclass(frozen=True, slots=True)
class Fault:
    """Why the API server did not do what was asked, or would not."""

    reason: Publishing
    message: str


@dataclass(frozen=True, slots=True)
class Serve:
    """Bring a version to the servers of an entry, or correct what they have of it."""

    entry: PublishSpec
    version: PublishedVersion


@dataclass(frozen=True, slots=True)
class Drop:
    """Remove an item from its servers."""

    item: Item


Move = Serve | Drop


@dataclass(frozen=True, slots=True)
class Put:
    """Create an object. One of that name that is there already stays as it is.

    `entries`, here and below: names of the entries of spec.publish that the step is about.
    """

    entries: tuple[str, ...]
    kind: str
    name: str
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Change:
    """Merge a patch into an object, if it is still as the preconditions in the patch's metadata say."""

    entries: tuple[str, ...]
    kind: str
    name: str
    patch: Manifest


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete an object, if it is still the one with this uid. Not found is success."""

    entries: tuple[str, ...]
    kind: str
    name: str
    uid: str


Step = Put | Change | Remove


class Servers(Protocol):
    """What the servers of one target have of a job's versions, and how that is changed. Pure: it was listed before."""

    @property
    def items(self) -> Sequence[Item]:
        """The versions of this job, of an earlier one with its name, or of its schedule."""

    def place(self, entry: PublishSpec) -> str:
        """Where the versions of an entry belong."""

    def obstacle(self, entry: PublishSpec, version: PublishedVersion) -> Fault | None:
        """Why a version cannot be brought there, as far as the servers' objects say."""

    def steps(self, moves: Iterable[Move]) -> list[Step]:
        """The writes that make these moves; none for one that is made already."""


type Asked = Mapping[TargetName, Servers | Fault]
"""By target, its servers, or why they could not be listed."""
