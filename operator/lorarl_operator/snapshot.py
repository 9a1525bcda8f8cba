"""One look at a job: what was observed, sorted by attempt, with the helpers that every decision needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from lorarl_api.faults import ManifestError
from lorarl_api.v1alpha1 import ClusterSpec
from lorarl_operator.decision import Action, Apply, Decision, Delete, Event, Manifest, Want
from lorarl_operator.manifests.access import grants, needs
from lorarl_operator.manifests.config import config_map
from lorarl_operator.models import Job, Observed, Pod, RayCluster, RayJob, Refusal
from lorarl_operator.names import attempt_of, ray_job_name
from lorarl_operator.outcome import Report, exited_container
from lorarl_operator.parse import time
from lorarl_operator.settings import Settings
from lorarl_operator.status import PENDING, RUNNING, STARTING, SUSPENDED, SUSPENDING, Draft, sound
from lorarl_operator.valid_spec import checked_spec, whole

_LIVE = frozenset({PENDING, STARTING, RUNNING})
_CLOCKS_DIFFER = timedelta(seconds=5)


@dataclass(frozen=True)
class Snapshot:
    """What is known of a job.

    Attributes:
        attempt: The attempt that is, or is to be made next.
        current: Its RayJob, where it is there and ours.
        others: Our RayJobs of other attempts: they are to go.
        name_taken: Whether something that is not ours has the current RayJob's name.
        pods: The job's pods, of all attempts.
    """

    job: Job
    observed: Observed
    now: datetime
    settings: Settings
    spec: dict[str, Any]
    status: dict[str, Any]
    attempt: int
    current: RayJob | None
    others: tuple[RayJob, ...]
    name_taken: bool
    pods: tuple[Pod, ...]

    @property
    def phase(self) -> str:
        """The phase as it was last written; empty before."""
        return str(self.status.get("phase", ""))

    @property
    def ray_job_name(self) -> str:
        """Name of the attempt's RayJob."""
        return ray_job_name(self.job.name, self.attempt)

    @property
    def ray_jobs(self) -> tuple[RayJob, ...]:
        """All RayJobs of ours."""
        return ((self.current,) if self.current else ()) + self.others

    @property
    def clusters(self) -> tuple[RayCluster, ...]:
        """RayClusters of the attempt's RayJob; one that a queue took away may still be there beside the new one."""
        return tuple(
            each for each in self.observed.ray_clusters if each.job_uid == self.job.uid and each.name == self._cluster
        )

    @property
    def attempt_pods(self) -> tuple[Pod, ...]:
        """The attempt's pods, of its present RayCluster."""
        return tuple(pod for pod in self.pods if self._is_of_the_attempt(pod))

    @property
    def departed_pods(self) -> tuple[Pod, ...]:
        """The attempt's pods that are gone. Those that were taken away before the attempt ran, KubeRay has replaced: that cost nothing."""
        departed = [
            pod for pod in self.observed.departed if pod.job_uid == self.job.uid and self._is_of_the_attempt(pod)
        ]
        ran_since = self.draft().since("Running") if self.phase == RUNNING else None
        if ran_since is None:
            return tuple(pod for pod in departed if exited_container(pod))
        since = ran_since - _CLOCKS_DIFFER
        return tuple(pod for pod in departed if pod.deletion_asked_at is None or pod.deletion_asked_at >= since)

    def _is_of_the_attempt(self, pod: Pod) -> bool:
        return pod.attempt == self.attempt and pod.cluster == self._cluster

    @property
    def _cluster(self) -> str:
        return self.current.cluster_name if self.current else ""

    @property
    def report(self) -> Report | None:
        """What the trainer said of this attempt's failure."""
        said = self.status.get("failure", {})
        if said.get("attempt") != self.attempt:
            return None
        return Report(str(said.get("reason") or "Failed"), str(said.get("message") or ""))

    def draft(self) -> Draft:
        """The status as it is, to be changed."""
        return Draft(self.job, self.status, self.now)

    def since(self, field: str) -> float | None:
        """Seconds since a time in the status; never less than 0: clocks differ."""
        when = time(self.status.get(field))
        return max(0.0, (self.now - when).total_seconds()) if when else None

    def left(self, field: str, limit: str) -> float | None:
        """Seconds that are left until `limit` of the spec has passed since a time in the status; None without either."""
        seconds, passed = whole(self.spec.get(limit)), self.since(field)
        return None if seconds is None or passed is None else seconds - passed

    def holding(self, pods: Iterable[Pod]) -> list[Pod]:
        """Pods that may still work: they are there, and their grace period is not long past. On a lost node pods never go."""
        patience = timedelta(seconds=self.settings.pods_gone_seconds)
        return [pod for pod in pods if pod.gone_by is None or self.now <= pod.gone_by + patience]

    def training(self) -> list[Pod]:
        """Pods that may still train.

        One that is taken away before its containers have started does not: KubeRay replaces a lost pod at once.
        """
        return [pod for pod in self.holding(self.pods) if not (pod.gone_by and pod.phase == "Pending")]

    def until_gone(self, pods: Sequence[Pod]) -> float:
        """Seconds until pods that are being deleted stop to hold anything up; a while where some are not being deleted yet."""
        patience = self.settings.pods_gone_seconds
        ends = [(pod.gone_by - self.now).total_seconds() + patience for pod in pods if pod.gone_by]
        return max(1.0, min(ends)) if ends else patience

    def refused_for(self, refusal: Refusal) -> float:
        """Seconds for which what was refused is not tried again."""
        brief = refusal.reason == "AlreadyExists" or "status unknown for quota" in refusal.message
        return self.settings.refused_briefly_seconds if brief else self.settings.refused_seconds

    def refusal(self, *manifests: Manifest) -> Refusal | None:
        """A refusal of one of these objects that is not to be tried again yet. A changed spec is tried at once."""
        refusal = self.observed.refusal
        if refusal is None or refusal.generation != self.job.generation:
            return None
        if (refusal.kind, refusal.name) not in {(each["kind"], each["metadata"]["name"]) for each in manifests}:
            return None
        return refusal if 0 <= (self.now - refusal.at).total_seconds() < self.refused_for(refusal) else None

    @property
    def announced(self) -> bool:
        """Whether the status names the attempt: until then its RayJob is new, and the trainer's right is still to be granted."""
        return bool(self.status.get("rayJobName") == self.ray_job_name)

    def needs(self) -> tuple[Apply, ...]:
        """What the attempt's pods cannot start without, applied.

        Raises:
            ManifestError: The spec is not valid.
        """
        return self._applied(needs)

    def grants(self) -> tuple[Apply, ...]:
        """The trainer's right to write this job's status, applied.

        Raises:
            ManifestError: The spec is not valid.
        """
        return self._applied(grants)

    def prepared(self) -> tuple[Apply, ...]:
        """Both.

        Raises:
            ManifestError: The spec is not valid.
        """
        return self.needs() + self.grants()

    def _applied(self, build: Callable[[Job, ClusterSpec], list[Manifest]]) -> tuple[Apply, ...]:
        new = self.attempt == 1 and not self.announced
        return tuple(Apply(manifest, new) for manifest in build(self.job, checked_spec(self.job).cluster))

    def decision(
        self,
        draft: Draft,
        *events: Event,
        prepare: tuple[Apply, ...] = (),
        actions: Iterable[Action] = (),
        recheck: float | None = None,
        wants: Want | None = None,
    ) -> Decision:
        """The decision to leave the status as drafted. Events belong to the transition: without a change there are none."""
        status = draft.written()
        is_prepared = any(each.manifest["kind"] == "ConfigMap" for each in prepare)
        if status is not None and not is_prepared and draft.phase in _LIVE and self._config_is_old():
            config = config_map(self.job)
            try:
                checked_spec(self.job)
            except ManifestError as error:
                events = (*events, Event("Warning", "Invalid", f"the attempt goes on with the spec as it was: {error}"))
            else:
                if refusal := self.refusal(config):
                    why = f"{refusal.kind} {refusal.name}: {refusal.message}"
                    events = (
                        *events,
                        Event("Warning", "ObjectRefused", f"the attempt goes on with the spec as it was: {why}"),
                    )
                else:
                    prepare = (*prepare, Apply(config))
        return Decision(
            prepare=prepare,
            status=status,
            events=events if status is not None else (),
            actions=tuple(actions),
            recheck_seconds=None if recheck is None else max(0.1, recheck),
            wants_evidence=wants,
        )

    def _config_is_old(self) -> bool:
        """Whether the spec has changed under a RayJob that reads it. observedGeneration is written after the ConfigMap."""
        return self.current is not None and self.job.generation not in (
            self.status.get("observedGeneration"),
            self.current.generation,
        )


def look(observed: Observed, now: datetime, settings: Settings) -> Snapshot:
    """Sort what was observed."""
    job = observed.job
    spec, status = job.read_spec(), sound(job.read_status())
    newest = attempt_of(job.name, status.get("rayJobName", ""))
    # Resumed, the job goes on with a new attempt. It needs no write: the phase says so until the attempt is there.
    resumed = status.get("phase") in (SUSPENDING, SUSPENDED) and spec.get("suspend") is not True
    ours = [each for each in observed.ray_jobs if each.owner_uid == job.uid]
    # A RayJob of a later attempt than the status knows: the status that we see is old, or was lost. Nothing is deleted for that.
    latest = max((attempt_of(job.name, each.name) for each in ours), default=0)
    attempt = max(newest + 1 if resumed else newest, latest, 1)
    name = ray_job_name(job.name, attempt)
    return Snapshot(
        job=job,
        observed=observed,
        now=now,
        settings=settings,
        spec=spec,
        status=status,
        attempt=attempt,
        current=next((each for each in ours if each.name == name), None),
        others=tuple(each for each in ours if each.name != name),
        name_taken=any(each.name == name and each.owner_uid != job.uid for each in observed.ray_jobs),
        pods=tuple(pod for pod in observed.pods if pod.job_uid == job.uid and pod.role != "cleanup"),
    )


def deletions(ray_jobs: Iterable[RayJob]) -> list[Action]:
    """Delete those that are not being deleted yet."""
    return [Delete("RayJob", each.name, each.uid) for each in ray_jobs if not each.deleted_at]


def soonest(*seconds: float | None) -> float | None:
    """The least of those that are given."""
    return min((each for each in seconds if each is not None), default=None)
