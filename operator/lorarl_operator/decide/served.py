"""What servers have of a job's versions, why they could not be asked, and what may be done about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lorarl_api.v1alpha1 import PublishedVersion
from lorarl_operator.decide.decision import Manifest
from lorarl_operator.decide.publish_reasons import Publishing


@dataclass(frozen=True, slots=True)
class Item:
    """A version as the servers have it.

    Attributes:
        entry: Name of the entry of spec.publish that it belongs to.
        version: What was recorded when it was created; None if that cannot be read.
        answers: Whether a server answers with it.
        ready: Whether all servers do that should.
        failed: Why it cannot be loaded; empty if nothing says so.
        text: How far it is, for people.
        going: Whether its deletion was requested.
        spec: Of the object.
    """

    entry: str
    model: str
    uid: str
    version: PublishedVersion | None
    answers: bool
    ready: bool
    failed: str
    text: str
    going: bool
    spec: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Fault:
    """Why the API server did not do what was asked."""

    reason: Publishing
    message: str


@dataclass(frozen=True, slots=True)
class Put:
    """Create a version's object. One of that name that is there already stays as it is."""

    entry: str
    model: str
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Change:
    """Patch a version's object, if it is still the one with the uid of the patch."""

    entry: str
    model: str
    patch: Manifest


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete a version's object, if it is still the one with this uid. Not found is success."""

    entry: str
    model: str
    uid: str


Step = Put | Change | Remove
