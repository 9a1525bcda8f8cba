"""What is decided: a status to write, actions in their order, and when to look again.

The runtime carries a decision out in this order, and stops at the first thing that fails:
1. `prepare`: applies that are the same however often they are made;
2. `status`, in one server-side apply with the observed resourceVersion and uid as preconditions: a conflict means that the world has
   moved, and a new look decides anew;
3. `events`, which belong to the status that was written (without a status they are posted as they are);
4. `actions`.
All answers go into the cache, and the job is looked at again. Killed at any moment, the next operator goes on from what is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

Manifest = dict[str, Any]
"""A whole Kubernetes object, as it is sent."""


@dataclass(frozen=True, slots=True)
class Apply:
    """Make an object with an owner, or bring it up to date by server-side apply (field manager `lorarl-operator`, force).

    Where another owner's object has the name, nothing is written, and the runtime keeps a `Refusal` AlreadyExists.
    `new` says that it is hardly there yet: it is not asked for first.
    """

    manifest: Manifest
    new: bool = False


@dataclass(frozen=True, slots=True)
class Create:
    """POST with fieldValidation=Strict; never patched afterwards.

    AlreadyExists: the runtime reads the object into its cache (a RayJob of somebody else too) and keeps a `Refusal`.
    """

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Delete:
    """DELETE in the background, with the uid as precondition. Not found is success."""

    kind: Literal["RayJob", "Job"]
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class AddFinalizer:
    """Add `lorarl.io/cleanup` to the LoRARLJob."""


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """Remove `lorarl.io/cleanup` from the LoRARLJob. Not found is success."""


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """DELETE the LoRARLJob in the background, with its uid as precondition."""


Action = Apply | Create | Delete | AddFinalizer | RemoveFinalizer | DeleteJob


class Want(Enum):
    """Evidence to fetch, after which `decide` is called again with it.

    EVENTS: Events of the attempt's RayJob, RayCluster and pods. WORKLOAD: Kueue's Workload of the RayJob.
    Evidence is as good as it is old: fetch it anew at each recheck, not at each look.
    """

    EVENTS = "events"
    WORKLOAD = "workload"


@dataclass(frozen=True, slots=True)
class Event:
    """An Event about the LoRARLJob."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do about one job.

    Attributes:
        prepare: Applies before the status is written.
        status: The whole of the operator's part of the status, only where it differs from what is there; fields left out are removed.
        events: Events of this transition.
        actions: What to do after the status is written.
        recheck_seconds: Look again after this time though nothing happens; None: only when something happens.
        wants_evidence: What to fetch to explain why the job is stuck.
    """

    prepare: tuple[Apply, ...] = ()
    status: dict[str, Any] | None = None
    events: tuple[Event, ...] = ()
    actions: tuple[Action, ...] = ()
    recheck_seconds: float | None = None
    wants_evidence: Want | None = None
