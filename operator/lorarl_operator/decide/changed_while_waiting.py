"""A job that was changed while its RayJob waited: a new RayJob takes its place.

`cluster`, `tracking` and the labels for queues and schedulers reach an attempt when its RayJob is created. A training
that runs keeps what it began with, and its next attempt has the change.
"""

from __future__ import annotations

from lorarl_api.faults import ManifestError
from lorarl_operator.decide.attempt_end import next_attempt
from lorarl_operator.decide.decision import Decision, Event
from lorarl_operator.decide.kept_image import with_each_name
from lorarl_operator.decide.models import RayJob
from lorarl_operator.decide.reasons import Waiting
from lorarl_operator.decide.snapshot import Snapshot
from lorarl_operator.decide.status import Draft
from lorarl_operator.decide.valid_spec import checked_spec
from lorarl_operator.manifests.digests import passed_digest, pods_digest


def replace_changed(snapshot: Snapshot, draft: Draft, ray_job: RayJob) -> Decision | None:
    """Replace a RayJob whose training has not begun, if the job asks for something else by now; otherwise None."""
    changed = [
        what
        for what, has in (("cluster or tracking", _pods_changed), ("labels", _labels_changed))
        if has(snapshot, ray_job)
    ]
    if not changed:
        return None
    message = (
        f"The job's {' and '.join(changed)} changed while attempt {snapshot.attempt} waited. "
        f"Attempt {snapshot.attempt + 1} takes its place."
    )
    return next_attempt(snapshot, draft, Event("Normal", Waiting.CHANGED, message))


def _pods_changed(snapshot: Snapshot, ray_job: RayJob) -> bool:
    if not ray_job.pods_digest or ray_job.generation == snapshot.job.generation:
        return False
    try:
        asked = with_each_name(checked_spec(snapshot.job), snapshot.status.get("trainerImage", ""))
    except ManifestError:  # No RayJob can be created from this spec.
        return False
    return ray_job.pods_digest not in map(pods_digest, asked)


def _labels_changed(snapshot: Snapshot, ray_job: RayJob) -> bool:
    """Whether labels or annotations of a RayJob that a queue holds have changed. They do not raise the generation."""
    return bool(ray_job.passed_digest) and ray_job.suspended and passed_digest(snapshot.job) != ray_job.passed_digest
