"""What is known of the cluster: each job with its objects, each sweep and each schedule, in their newest version.

News comes from the watches, from resyncs and from the answers to our own writes, in any order. So an older version
never replaces a newer one, and a deleted object never comes back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from lorarl_operator.decide import parse
from lorarl_operator.decide.awaited import is_noted
from lorarl_operator.decide.models import (
    LABEL_MANAGED_BY,
    MANAGED_BY,
    RETRYING,
    SELECTOR,
    Budget,
    CleanupJob,
    Job,
    Observed,
    Pod,
    RayCluster,
    RayJob,
)
from lorarl_operator.decide.schedule_models import Schedule
from lorarl_operator.decide.sweep_models import Sweep
from lorarl_operator.kube.resources import (
    BUDGETS,
    JOBS,
    LORARLJOBS,
    LORARLSCHEDULES,
    LORARLSWEEPS,
    PODS,
    RAYCLUSTERS,
    RAYJOBS,
    Resource,
)

type Key = tuple[str, str]
"""Namespace and name of a job, of a sweep and of a schedule."""
type Root = Job | Sweep | Schedule
type Child = RayJob | RayCluster | Pod | CleanupJob | Budget

_PARSERS: dict[Resource, Callable[[parse.Raw], Child]] = {
    RAYJOBS: parse.ray_job,
    RAYCLUSTERS: parse.ray_cluster,
    PODS: parse.pod,
    JOBS: parse.cleanup_job,
    BUDGETS: parse.budget,
}
_ROOTS: dict[Resource, Callable[[parse.Raw], Root]] = {
    LORARLJOBS: parse.job,
    LORARLSWEEPS: parse.sweep,
    LORARLSCHEDULES: parse.schedule,
}
"""Kinds that belong to nothing else here. Those of one name share an entry."""
WATCHED: dict[Resource, str] = {**dict.fromkeys(_ROOTS, ""), **dict.fromkeys(_PARSERS, SELECTOR)}
"""What is watched, with the label selector that the server filters by."""
_REMEMBERED_DELETIONS = 20_000
_REMEMBERED_PODS = 8
"""Per job, until its RayJob is deleted."""


@dataclass(slots=True)
class _Entry:
    roots: dict[Resource, Root] = field(default_factory=dict)
    children: dict[tuple[Resource, str], Child] = field(default_factory=dict)
    departed: tuple[Pod, ...] = ()

    @property
    def job(self) -> Job | None:
        """The job of this name."""
        found = self.roots.get(LORARLJOBS)
        return found if isinstance(found, Job) else None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known under this name any more."""
        return not self.roots and not self.children


class Cache:
    """Jobs and their objects, by job."""

    def __init__(self) -> None:
        self._entries: dict[Key, _Entry] = {}
        self._deleted: OrderedDict[str, None] = OrderedDict()
        self._unwatched: set[str] = set()
        self._made: dict[str, set[Key]] = {}
        """By the uid of their maker: jobs that were made. Other jobs of that name may be there by now."""
        self._kuberay_began: datetime | None = None

    def __len__(self) -> int:
        return sum(entry.job is not None for entry in self._entries.values())

    def put(self, resource: Resource, raw: parse.Raw, key: Key | None = None) -> Key | None:
        """Store an object.

        `key`: The job that it belongs to. By default its labels say so.

        Returns:
            The job that this is news for; None if it is not news, or belongs to no job.
        """
        key = self.is_news(resource, raw, key)
        if key is None:
            return None
        meta, entry = raw["metadata"], self._entries.get(key)
        known = self._known(entry, resource, meta["name"])
        if entry is None:
            entry = self._entries[key] = _Entry()
        if resource in _ROOTS:
            root = entry.roots[resource] = _ROOTS[resource](raw)
            if isinstance(root, Job) and root.maker is not None:
                self._made.setdefault(root.maker.uid, set()).add(key)
            return key
        child = _PARSERS[resource](raw)
        if isinstance(child, Pod) and isinstance(known, Pod) and known.uid == child.uid:
            child = _first_asked(child, known)
        if isinstance(child, RayJob):
            child = with_last_end(child, known if isinstance(known, RayJob) else None)
        entry.children[resource, meta["name"]] = child
        if isinstance(child, RayJob) and child.started_at:
            self._kuberay_began = max(self._kuberay_began or child.started_at, child.started_at)
        if known and known.uid != meta["uid"]:
            self._unwatched.discard(known.uid)
        if not _is_watched(raw, key):
            self._unwatched.add(meta["uid"])
        return key

    def is_news(self, resource: Resource, raw: parse.Raw, key: Key | None = None) -> Key | None:
        """The job that an object is news for, by its metadata alone; see `put`."""
        meta = raw["metadata"]
        key = key or key_of(resource, raw)
        if key is None or meta["uid"] in self._deleted:
            return None
        known = self._known(self._entries.get(key), resource, meta["name"])
        is_old = known is not None and int(meta["resourceVersion"]) <= int(known.resource_version)
        return None if is_old else key

    def remove(self, resource: Resource, key: Key, name: str, uid: str) -> bool:
        """Remember that an object is deleted. Return whether that is news."""
        self._deleted[uid] = None
        while len(self._deleted) > _REMEMBERED_DELETIONS:
            self._deleted.popitem(last=False)
        self._unwatched.discard(uid)
        entry = self._entries.get(key)
        known = self._known(entry, resource, name)
        if entry is None or known is None or known.uid != uid:
            return False
        if resource in _ROOTS:
            del entry.roots[resource]
            self._forget_maker(known, key)
        else:
            del entry.children[resource, name]
        if isinstance(known, Pod):
            entry.departed = (*entry.departed, known)[-_REMEMBERED_PODS:]
        elif resource == RAYJOBS:
            entry.departed = ()
        if entry.is_empty:
            del self._entries[key]
        return True

    def newest(self, resource: Resource, namespace: str | None) -> int:
        """The highest version of the objects of a kind; 0 if there are none."""
        return max((int(one.resource_version) for _, one in self._all(resource, namespace)), default=0)

    def forget(self, resource: Resource, namespace: str | None) -> None:
        """Forget all objects of a kind, and which objects were deleted: older versions of them are news again."""
        self._deleted.clear()
        for key, one in self._all(resource, namespace):
            entry = self._entries[key]
            if resource in _ROOTS:
                del entry.roots[resource]
            else:
                del entry.children[resource, one.name]
            if entry.is_empty:
                del self._entries[key]

    def observe(self, key: Key) -> Observed | None:
        """A job with its objects; None if there is no such job."""
        entry = self._entries.get(key)
        if entry is None or entry.job is None:
            return None
        children = entry.children.values()
        return Observed(
            job=entry.job,
            ray_jobs=tuple(one for one in children if isinstance(one, RayJob)),
            ray_clusters=tuple(one for one in children if isinstance(one, RayCluster)),
            pods=tuple(one for one in children if isinstance(one, Pod)),
            departed=entry.departed,
            cleanup=next((one for one in children if isinstance(one, CleanupJob)), None),
            budget=next((one for one in children if isinstance(one, Budget)), None),
            kuberay_began=self._kuberay_began,
            is_noted=self._is_noted(entry.job),
        )

    def _is_noted(self, job: Job) -> bool:
        """See `Observed`. A status may be long, so it is read only where the job is deleted after its end."""
        maker = job.maker
        if maker is None or b'"ttlSecondsAfterFinished"' not in job.spec or b'"completionTime"' not in job.status:
            return True
        key = (job.namespace, maker.name)
        found = self.sweep(key) if maker.kind == LORARLSWEEPS.kind else self.schedule(key)
        return found is None or found.uid != maker.uid or is_noted(job, found)

    def unwatched(self, key: Key) -> list[tuple[Resource, Child]]:
        """Objects that no watch reports: they belong to someone else, and only have a name that the job needs."""
        if not self._unwatched or (entry := self._entries.get(key)) is None:
            return []
        return [(resource, child) for (resource, _), child in entry.children.items() if child.uid in self._unwatched]

    def jobs(self) -> Iterator[Job]:
        """All jobs."""
        return (entry.job for entry in self._entries.values() if entry.job is not None)

    def job(self, key: Key) -> Job | None:
        """A job; None if there is no such job."""
        entry = self._entries.get(key)
        return entry.job if entry else None

    def sweep(self, key: Key) -> Sweep | None:
        """A sweep; None if there is no such sweep."""
        found = self._known(self._entries.get(key), LORARLSWEEPS, key[1])
        return found if isinstance(found, Sweep) else None

    def schedule(self, key: Key) -> Schedule | None:
        """A schedule; None if there is no such schedule."""
        found = self._known(self._entries.get(key), LORARLSCHEDULES, key[1])
        return found if isinstance(found, Schedule) else None

    def makers(self, resource: Resource, namespace: str | None) -> list[Key]:
        """The sweeps or schedules of a namespace (None: of all)."""
        return [key for key, _ in self._all(resource, namespace)]

    def made_by(self, maker: Sweep | Schedule) -> dict[str, Job]:
        """The jobs that a sweep or schedule owns, by their names."""
        found = {key[1]: self.job(key) for key in self._made.get(maker.uid, ())}
        return {name: job for name, job in found.items() if job and job.maker and job.maker.uid == maker.uid}

    def vanished(
        self, resource: Resource, namespace: str | None, listed: set[str], version: str
    ) -> list[tuple[Key, str, str]]:
        """Objects that a list of this version should have had, but did not: (job, name, uid) of each."""
        return [
            (key, one.name, one.uid)
            for key, one in self._all(resource, namespace)
            if one.uid not in listed and one.uid not in self._unwatched and int(one.resource_version) <= int(version)
        ]

    def _all(self, resource: Resource, namespace: str | None) -> list[tuple[Key, Root | Child]]:
        """All objects of a kind in a namespace (None: in all), each with its job."""
        return [
            (key, one)
            for key, entry in self._entries.items()
            if namespace in (None, key[0])
            for one in self._of_kind(entry, resource)
        ]

    def _forget_maker(self, gone: Root | Child, key: Key) -> None:
        """Forget which jobs a maker made, or that a job was made."""
        if not isinstance(gone, Job):
            self._made.pop(gone.uid, None)
        elif gone.maker is not None and (made := self._made.get(gone.maker.uid)) is not None:
            made.discard(key)
            if not made:
                del self._made[gone.maker.uid]

    @staticmethod
    def _known(entry: _Entry | None, resource: Resource, name: str) -> Root | Child | None:
        if entry is None:
            return None
        return entry.roots.get(resource) or entry.children.get((resource, name))

    @staticmethod
    def _of_kind(entry: _Entry, resource: Resource) -> list[Root | Child]:
        if resource in _ROOTS:
            return [entry.roots[resource]] if resource in entry.roots else []
        return [child for (kind, _), child in entry.children.items() if kind == resource]


def key_of(resource: Resource, raw: parse.Raw) -> Key | None:
    """The job, sweep or schedule that an object is, or the job that it belongs to by its labels."""
    if resource in _ROOTS:
        meta: dict[str, Any] = raw["metadata"]
        return meta["namespace"], meta["name"]
    return parse.job_key(raw)


def _first_asked(pod: Pod, known: Pod) -> Pod:
    """The pod with the time when its deletion was first asked for.

    At its end the API server replaces that time by the present one, with a grace period of 0. The containers' exits
    would then seem to come before the deletion.
    """
    if known.deletion_asked_at is None or pod.deletion_asked_at is None:
        return pod
    return replace(pod, deletion_asked_at=min(pod.deletion_asked_at, known.deletion_asked_at))


def with_last_end(ray_job: RayJob, known: RayJob | None) -> RayJob:
    """The RayJob with what it was when it last failed, which KubeRay removes from it a moment later."""
    if ray_job.deployment_status == RETRYING:
        return replace(ray_job, last_end=ray_job)
    return replace(ray_job, last_end=known.last_end) if known and known.uid == ray_job.uid else ray_job


def _is_watched(raw: parse.Raw, key: Key) -> bool:
    labels = raw["metadata"].get("labels") or {}
    return labels.get(LABEL_MANAGED_BY) == MANAGED_BY and parse.job_key(raw) == key
