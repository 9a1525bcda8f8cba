"""The result of a decision: a status to write, actions in order, and when to look again.

The controller carries a decision out in this order and stops at the first failure:
1. `prepare`: applies, which are idempotent;
2. `status`: one server-side apply with the observed resourceVersion and uid as preconditions. A conflict means that the
   cluster has changed, so the controller observes again and decides again;
3. `events`, which belong to the status that was written. Without a status they are recorded as they are;
4. `actions`.
All answers go into the cache, and the controller then looks at the job again. If the operator is killed at any moment,
its successor continues from the state in the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from lorarl_api.redaction import redacted
from lorarl_operator.decide.messages import sentences
from lorarl_operator.decide.models import WORKER_GROUP
from lorarl_operator.decide.news_reasons import News
from lorarl_operator.decide.reasons import Reason

Manifest = dict[str, Any]
"""A whole Kubernetes object, as it is sent."""


@dataclass(frozen=True, slots=True)
class Apply:
    """Create an owned object, or update it by server-side apply (field manager `lorarl-operator`, force).

    If an object with another owner has the name, nothing is written and the controller keeps a `Refusal` AlreadyExists.
    `new` says that the object probably does not exist yet, so the controller creates it without reading it first.
    """

    manifest: Manifest
    new: bool = False


@dataclass(frozen=True, slots=True)
class Create:
    """POST with fieldValidation=Strict. The object is never patched afterwards.

    On AlreadyExists the controller reads the object into its cache (also a RayJob of another owner) and keeps a
    `Refusal`.
    """

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Delete:
    """DELETE in the background, with the uid as precondition. Not found is success."""

    kind: Literal["RayJob", "Job", "PodDisruptionBudget"]
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class DeletePod:
    """DELETE a pod, so that KubeRay replaces it; with its uid as precondition. Not found is success.

    `at_once` is a deletion without a grace period, which no kubelet has to confirm. `ray_job` is the RayJob that starts
    again because this is its head. It is read again before that, as before its own deletion.
    """

    name: str
    uid: str
    at_once: bool
    ray_job: str = ""


@dataclass(frozen=True, slots=True)
class Scale:
    """Set the number of workers of a RayCluster, if it is still the one with this uid.

    `group` is where the workers are among its worker groups. `without` names pods that KubeRay deletes, so that it
    chooses no others.
    """

    name: str
    uid: str
    group: int
    replicas: int
    without: tuple[str, ...]

    @property
    def patch(self) -> list[dict[str, Any]]:
        """The JSON patch. It changes nothing if another RayCluster, or another group, is in that place."""
        group = f"/spec/workerGroupSpecs/{self.group}"
        return [
            {"op": "test", "path": "/metadata/uid", "value": self.uid},
            {"op": "test", "path": f"{group}/groupName", "value": WORKER_GROUP},
            {"op": "add", "path": f"{group}/replicas", "value": self.replicas},
            {"op": "add", "path": f"{group}/scaleStrategy", "value": {"workersToDelete": list(self.without)}},
        ]


@dataclass(frozen=True, slots=True)
class AddFinalizer:
    """Add `lorarl.io/cleanup` to the LoRARLJob."""


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """Remove `lorarl.io/cleanup` from the LoRARLJob. Not found is success."""


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """DELETE the LoRARLJob in the background, with its uid as precondition."""


Action = Apply | Create | Delete | DeletePod | Scale | AddFinalizer | RemoveFinalizer | DeleteJob


def waves(actions: Sequence[Action]) -> Iterator[Sequence[Action]]:
    """The actions in order, with adjacent applies grouped. A RoleBinding needs its Role, so it stays alone."""
    wave: list[Action] = []
    for action in actions:
        if isinstance(action, Apply) and action.manifest["kind"] != "RoleBinding":
            wave.append(action)
            continue
        if wave:
            yield wave
        wave = []
        yield [action]
    if wave:
        yield wave


class Want(Enum):
    """Evidence to fetch. `decide` is called again with it.

    EVENTS: Events about the attempt's RayJob, RayCluster and pods. WORKLOAD: Kueue's Workload of the RayJob.
    STOP: the same, read at once before the RayJob is deleted. CORDONED: the nodes that take no new pods.
    Evidence ages: fetch it again at each recheck, not at each call of `decide`.
    """

    EVENTS = "events"
    WORKLOAD = "workload"
    STOP = "stop"
    CORDONED = "cordoned"


@dataclass(frozen=True, slots=True)
class Event:
    """An Event about a LoRARLJob, a sweep or a schedule."""

    type: Literal["Normal", "Warning"]
    reason: Reason
    message: str


def operator_fault(what: str, error: Exception) -> Event:
    """An Event about a fault of ours, at an object whose status may say nothing yet."""
    text = f"The operator cannot handle {what}: {type(error).__name__}: {error}"
    return Event("Warning", News.OPERATOR_FAULT, sentences(text, "It tries again, at least once per minute."))


def refused_change(error: Exception) -> Event:
    """An Event about a change that the API server refuses, and of which no status tells."""
    text = f"The API server refuses a change that the operator has to make: {redacted(str(error))}"
    return Event("Warning", News.CHANGE_REFUSED, sentences(text, "It tries again, at least once per minute."))


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do about one job.

    Attributes:
        prepare: Applies that come before the status is written.
        status: The operator's whole part of the status, if it differs from the stored one. Omitted fields are removed.
        events: Events of this transition.
        actions: What to do after the status is written.
        recheck_seconds: Look again after this time even if nothing happens. None: only when something happens.
        wants_evidence: What to fetch to explain why the job is stuck.
    """

    prepare: tuple[Apply, ...] = ()
    status: dict[str, Any] | None = None
    events: tuple[Event, ...] = ()
    actions: tuple[Action, ...] = ()
    recheck_seconds: float | None = None
    wants_evidence: Want | None = None

    @property
    def ends(self) -> frozenset[str]:
        """Names of the RayJobs that the actions end."""
        deleted = {one.name for one in self.actions if isinstance(one, Delete) and one.kind == "RayJob"}
        return frozenset(deleted | {one.ray_job for one in self.actions if isinstance(one, DeletePod)})
