"""One observation of a job, sorted by attempt, with the helpers that every decision needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from lorarl_api.faults import ManifestError
from lorarl_api.v1alpha1 import ClusterSpec, LoRARLJobSpec
from lorarl_operator.decide.decision import Action, Apply, Decision, Delete, Event, Manifest, Want
from lorarl_operator.decide.early_losses import Loss, losses
from lorarl_operator.decide.elastic import node_range, placed_engines, placed_workers
from lorarl_operator.decide.faulty_nodes import FaultyNode, faulty_nodes, to_avoid, to_use_last, with_fault
from lorarl_operator.decide.held_gpus import count_held
from lorarl_operator.decide.kept_image import with_kept_image
from lorarl_operator.decide.models import RETRYING, Job, Observed, Pod, RayCluster, RayJob, Refusal
from lorarl_operator.decide.names import attempt_of, ray_job_name
from lorarl_operator.decide.news_reasons import News
from lorarl_operator.decide.outcome import Report
from lorarl_operator.decide.parse import time
from lorarl_operator.decide.pod_ends import Outcome, exited_container, exited_worker
from lorarl_operator.decide.reasons import Ended, Waiting, foreign
from lorarl_operator.decide.recovery import Workers, workers_of
from lorarl_operator.decide.settings import Settings
from lorarl_operator.decide.status import PENDING, RUNNING, STARTING, SUSPENDED, SUSPENDING, Draft, well_typed
from lorarl_operator.decide.valid_spec import checked_spec, section, whole_number
from lorarl_operator.manifests.access import grants, needs
from lorarl_operator.manifests.config import config_map

_LIVE = frozenset({PENDING, STARTING, RUNNING})
_MOST_GPUS = 1024 * 64
_CLOCK_SKEW = timedelta(seconds=5)


@dataclass(frozen=True)
class Snapshot:
    """What is known of a job at one moment.

    Attributes:
        attempt: The current attempt, or the one to create next.
        current: Its RayJob, if it exists and is ours.
        others: Our RayJobs of other attempts, which are to be deleted.
        name_taken: Whether an object that is not ours has the name of the current RayJob.
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
        """The stored phase; empty before the first write."""
        return str(self.status.get("phase", ""))

    @property
    def ray_job_name(self) -> str:
        """Name of the attempt's RayJob."""
        return ray_job_name(self.job.name, self.attempt)

    @property
    def ray_jobs(self) -> tuple[RayJob, ...]:
        """All our RayJobs."""
        return ((self.current,) if self.current else ()) + self.others

    @property
    def clusters(self) -> tuple[RayCluster, ...]:
        """RayClusters of the attempt's RayJob. One that a queue took away may still exist beside the new one."""
        return tuple(
            each for each in self.observed.ray_clusters if each.job_uid == self.job.uid and each.name == self._cluster
        )

    @property
    def attempt_pods(self) -> tuple[Pod, ...]:
        """The attempt's pods in its present RayCluster."""
        return tuple(pod for pod in self.pods if self._belongs_to_attempt(pod))

    @property
    def departed_pods(self) -> tuple[Pod, ...]:
        """The attempt's deleted pods.

        KubeRay has replaced those that were taken away before the attempt ran. They cost nothing, so they are left out.
        """
        departed = self.all_departed
        running_since = self.draft().since("Running") if self.phase == RUNNING else None
        if running_since is None:
            return tuple(pod for pod in departed if exited_container(pod) and not exited_worker(pod))
        since = running_since - _CLOCK_SKEW
        return tuple(pod for pod in departed if pod.deletion_asked_at is None or pod.deletion_asked_at >= since)

    @property
    def lost_early(self) -> tuple[Loss, ...]:
        """The attempt's pods that were lost before it ran. Once it runs, they explain nothing."""
        return () if self.phase == RUNNING else losses((*self.all_departed, *self.attempt_pods))

    @property
    def all_departed(self) -> list[Pod]:
        """All of the attempt's deleted pods that are remembered."""
        return [pod for pod in self.observed.departed if pod.job_uid == self.job.uid and self._belongs_to_attempt(pod)]

    def _belongs_to_attempt(self, pod: Pod) -> bool:
        return pod.attempt == self.attempt and pod.cluster == self._cluster

    @property
    def _cluster(self) -> str:
        return self.current.cluster_name if self.current else ""

    @property
    def workers(self) -> Workers | None:
        """The worker pods that this attempt trains with, if its trainer has reported them since it started."""
        reported, began = self.job.reported_at, self.current.started_at if self.current else None
        if reported and began and reported < began:
            return None
        return workers_of(self.status, self.attempt)

    @property
    def recovering_since(self) -> datetime | None:
        """Since when the attempt waits for lost workers to be replaced; None if it does not."""
        return time(self.status.get("recoveringSince")) if self.phase == RUNNING else None

    @property
    def restarts_in_place(self) -> int:
        """How many ends of the current RayJob are accounted for. The newest may be one that KubeRay does not know yet.

        A RayJob that starts has failed as often as KubeRay says, whatever stopped it. An older operator removes the
        number.
        """
        if self.current is None or not self.attempt_is_recorded:
            return 0
        known = int(self.status.get("restartsInPlace", self.current.failures if self._end_is_known else 0))
        is_up = self.current.deployment_status in ("Running", RETRYING)
        return known if is_up else min(known, self.current.failures)

    @property
    def _end_is_known(self) -> bool:
        """Whether the status records how the previous start ended, and training has run since the current one."""
        ray_job, draft = self.current, self.draft()
        if ray_job is None or ray_job.started_at is None or self.phase != RUNNING:
            return False
        ended, trains_since = draft.at("attemptEndTime"), draft.since("Running")
        return bool(ended and trains_since and ray_job.created_at <= ended and ray_job.started_at < trains_since)

    @property
    def report(self) -> Report | None:
        """The trainer's report of this attempt's failure.

        A queue may stop an attempt and start it again. What it reported before is not how it ends now.
        """
        failure = self.status.get("failure", {})
        if failure.get("attempt") != self.attempt:
            return None
        reported, began = time(failure.get("time")), self.current.started_at if self.current else None
        if reported and began and reported < began:
            return None
        return Report(foreign(str(failure.get("reason") or Ended.FAILED)), str(failure.get("message") or ""))

    @property
    def gpus(self) -> int:
        """GPUs of all workers and engines together, by a spec that may not be valid."""
        return self._gpus_of(node_range(self.spec).most, self.engines)

    def _gpus_of(self, nodes: int, engines: int) -> int:
        each = self.gpus_by_role
        return min(nodes * each["worker"] + engines * each["engine"], _MOST_GPUS)

    @property
    def gpus_by_role(self) -> dict[str, int]:
        """GPUs of one pod of a worker or an engine, by a spec that may not be valid."""
        engines = section(section(self.spec, "rollout"), "separateEngines")
        worker = whole_number(section(self.spec, "cluster").get("gpusPerNode"), 0) or 0
        return {"worker": worker, "engine": (whole_number(engines.get("tensorParallelSize"), 1) or 0) if worker else 0}

    @property
    def engines(self) -> int:
        """Pods of separate engines, by a spec that may not be valid."""
        rollout = section(self.spec, "rollout")
        if rollout.get("separateEngines") is None:
            return 0
        return whole_number(section(rollout, "separateEngines").get("count"), 1) or 0

    @property
    def held_gpus(self) -> int:
        """GPUs of the pods that have a node, of as many workers and engines as the job asks for.

        A job that is not elastic pays for all of its workers, also while one is lost.
        """
        nodes, pods = node_range(self.spec), self.attempt_pods
        engines = min(len(placed_engines(pods)), self.engines)
        return self._gpus_of(len(placed_workers(pods)) if nodes.is_elastic else nodes.most, engines)

    def kept_spec(self) -> LoRARLJobSpec:
        """The spec that the next attempt is created from, with the trainer image that the job keeps.

        Raises:
            ManifestError: The spec is not valid.
        """
        return with_kept_image(checked_spec(self.job), self.status.get("trainerImage", ""))

    @property
    def faulty_nodes(self) -> tuple[FaultyNode, ...]:
        """Nodes whose fault ended attempts of this job."""
        return faulty_nodes(self.status)

    def faults_after(self, outcome: Outcome) -> list[dict[str, Any]]:
        """`status.faultyNodes` after an outcome that is a node's fault."""
        return with_fault(self.faulty_nodes, outcome, self.now, self.recovering_since)

    @property
    def avoided_nodes(self) -> tuple[str, ...]:
        """Nodes that the next attempt does not use."""
        return to_avoid(self.faulty_nodes, self.now)

    @property
    def last_nodes(self) -> tuple[str, ...]:
        """Nodes that the next attempt uses only if no other has room."""
        return to_use_last(self.faulty_nodes, self.now)

    def draft(self) -> Draft:
        """A draft of the next status, which starts from the stored one."""
        return Draft(self.job, self.status, self.now)

    def since(self, field: str) -> float | None:
        """Seconds since a time in the status. Never negative: clocks differ."""
        when = time(self.status.get(field))
        return max(0.0, (self.now - when).total_seconds()) if when else None

    def left(self, field: str, limit: str) -> float | None:
        """Seconds until the spec's `limit` has passed since a time in the status; None if either is missing."""
        seconds, passed = whole_number(self.spec.get(limit)), self.since(field)
        return None if seconds is None or passed is None else seconds - passed

    def active_pods(self, pods: Iterable[Pod]) -> list[Pod]:
        """Pods that may still work: those that exist, until shortly after their grace period.

        Pods on a lost node never disappear.
        """
        patience = timedelta(seconds=self.settings.pods_gone_seconds)
        return [pod for pod in pods if pod.gone_by is None or self.now <= pod.gone_by + patience]

    def training_pods(self) -> list[Pod]:
        """Pods that may still train.

        A pod that is deleted before its containers have started does not: KubeRay replaces a lost pod at once.
        """
        return [pod for pod in self.active_pods(self.pods) if not (pod.gone_by and pod.phase == "Pending")]

    def until_gone(self, pods: Sequence[Pod]) -> float:
        """Seconds until the first of the terminating pods counts as gone; a default if none is terminating yet."""
        patience = self.settings.pods_gone_seconds
        ends = [(pod.gone_by - self.now).total_seconds() + patience for pod in pods if pod.gone_by]
        return max(1.0, min(ends)) if ends else patience

    def retry_seconds(self, refusal: Refusal) -> float:
        """Seconds for which a refused action is not tried again."""
        brief = refusal.reason == "AlreadyExists" or "status unknown for quota" in refusal.message
        return self.settings.refused_briefly_seconds if brief else self.settings.refused_seconds

    def refusal(self, *manifests: Manifest) -> Refusal | None:
        """A recent refusal of one of these objects. A changed spec is tried at once."""
        wanted = {(each["kind"], each["metadata"]["name"]) for each in manifests}
        found = (one for one in self.observed.refusals if (one.kind, one.name) in wanted)
        return next((one for one in found if one.generation == self.job.generation and self._is_recent(one)), None)

    def _is_recent(self, refusal: Refusal) -> bool:
        return 0 <= (self.now - refusal.at).total_seconds() < self.retry_seconds(refusal)

    @property
    def attempt_is_recorded(self) -> bool:
        """Whether the status names the attempt. Until then its RayJob is new and its trainer has no permission yet."""
        return bool(self.status.get("rayJobName") == self.ray_job_name)

    def needs(self) -> tuple[Apply, ...]:
        """Applies of what the attempt's pods cannot start without.

        Raises:
            ManifestError: The spec is not valid.
        """
        return self._applied(partial(needs, settings=self.settings))

    def grants(self) -> tuple[Apply, ...]:
        """Applies of the trainer's permission to write this job's status.

        Raises:
            ManifestError: The spec is not valid.
        """
        return self._applied(grants)

    def prepared(self) -> tuple[Apply, ...]:
        """`needs` and `grants`.

        Raises:
            ManifestError: The spec is not valid.
        """
        return self.needs() + self.grants()

    def _applied(self, build: Callable[[Job, ClusterSpec], list[Manifest]]) -> tuple[Apply, ...]:
        new = self.attempt == 1 and not self.attempt_is_recorded
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
        """The decision to store the draft. The events belong to the transition: without a change there are none."""
        if self.status.get("checkpointTime"):
            message = (
                "The store has a checkpoint to resume from. status.checkpointTime says from when the newest one is."
            )
            draft.condition("Checkpointed", True, News.CHECKPOINTED, message)
        before = draft.before("gpus") if node_range(self.spec).is_elastic or self.engines else None
        count_held(draft, self.phase, self.attempt_pods, self.held_gpus, self.gpus_by_role, self.now, before)
        status = draft.written()
        is_prepared = any(each.manifest["kind"] == "ConfigMap" for each in prepare)
        if status is not None and not is_prepared and draft.phase in _LIVE and self._config_is_old():
            config, warning = self._new_config()
            prepare, events = (*prepare, *config), (*events, *warning)
        return Decision(
            prepare=prepare,
            status=status,
            events=events if status is not None else (),
            actions=tuple(actions),
            recheck_seconds=None if recheck is None else max(0.1, recheck),
            wants_evidence=wants,
        )

    def _config_is_old(self) -> bool:
        """Whether the spec of a RayJob that reads it has changed. observedGeneration is written after the ConfigMap."""
        return self.current is not None and self.job.generation not in (
            self.status.get("observedGeneration"),
            self.current.generation,
        )

    def _new_config(self) -> tuple[tuple[Apply, ...], tuple[Event, ...]]:
        """The ConfigMap with the changed spec, or a warning that the attempt cannot have it."""
        config = config_map(self.job)
        try:
            checked_spec(self.job)
        except ManifestError as error:
            return (), (Event("Warning", Waiting.INVALID, f"The attempt continues with the old spec: {error}"),)
        if refusal := self.refusal(config):
            why = f"{refusal.kind} {refusal.name}: {refusal.message}"
            return (), (Event("Warning", Waiting.OBJECT_REFUSED, f"The attempt continues with the old spec: {why}"),)
        return (Apply(config),), ()


def take_snapshot(observed: Observed, now: datetime, settings: Settings) -> Snapshot:
    """Sort what was observed."""
    job = observed.job
    spec, status = job.read_spec(), well_typed(job.read_status())
    newest = attempt_of(job.name, status.get("rayJobName", ""))
    # A resumed job continues with a new attempt. That needs no write: the phase says so until the attempt exists.
    resumed = status.get("phase") in (SUSPENDING, SUSPENDED) and spec.get("suspend") is not True
    ours = [each for each in observed.ray_jobs if each.owner_uid == job.uid]
    # There may be a RayJob of a later attempt than the status knows, if the observed status is old or was lost.
    # That is no reason to delete anything.
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
    """The smallest of the given numbers; None if there is none."""
    return min((each for each in seconds if each is not None), default=None)
