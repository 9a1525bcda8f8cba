"""Names, labels and owners of a job's objects."""

from __future__ import annotations

from typing import Any

from lorarl_api.v1alpha1 import API_VERSION, KIND
from lorarl_operator.decide.models import LABEL_ATTEMPT, LABEL_JOB, LABEL_JOB_UID, LABEL_MANAGED_BY, MANAGED_BY, Job

_LONGEST_NUMBER = 9


def ray_job_name(job: str, attempt: int) -> str:
    """Name of an attempt's RayJob. Attempts count from 1."""
    return f"{job}-{attempt}"


def attempt_of(job: str, ray_job: str) -> int:
    """The attempt in a RayJob's name; 0 if the name does not belong to this job."""
    number = ray_job.removeprefix(f"{job}-")
    return (
        int(number)
        if number != ray_job and number.isascii() and number.isdecimal() and len(number) <= _LONGEST_NUMBER
        else 0
    )


def access_name(job: str) -> str:
    """Name of the job's ServiceAccount, Role, RoleBinding, ConfigMap and NetworkPolicy."""
    return f"lorarl-{job}"


def cleanup_name(job: str) -> str:
    """Name of the Job that removes the checkpoints."""
    return f"lorarl-{job}-cleanup"


def cleanup_account_name(job: str) -> str:
    """Name of that Job's ServiceAccount, if it needs one.

    No job name has a dot. With a hyphen instead, a job `JOB-cleanup` would have the same account name.
    """
    return f"lorarl-{job}.cleanup"


def labels(job: Job, attempt: int | None = None) -> dict[str, str]:
    """Labels of each object of a job."""
    found = {LABEL_MANAGED_BY: MANAGED_BY, LABEL_JOB: job.name, LABEL_JOB_UID: job.uid}
    return found if attempt is None else found | {LABEL_ATTEMPT: str(attempt)}


def owner(job: Job) -> dict[str, Any]:
    """The owner reference to the LoRARLJob.

    The object is deleted with its job, and before it in a foreground deletion.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def metadata(job: Job, name: str, attempt: int | None = None) -> dict[str, Any]:
    """Metadata of an object that the job owns."""
    return {"name": name, "namespace": job.namespace, "labels": labels(job, attempt), "ownerReferences": [owner(job)]}
