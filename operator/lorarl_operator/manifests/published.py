"""What servers' objects record of a version: which one it is, and whose."""

from __future__ import annotations

from pydantic import ValidationError

from lorarl_api.schedules.manifest import LABEL_SCHEDULE
from lorarl_api.v1alpha1 import SCHEDULE_KIND, PublishedVersion
from lorarl_operator.decide.models import Job


def schedule_label(job: Job) -> dict[str, str]:
    """The label that what all jobs of a schedule publish shares; empty for another job."""
    return {LABEL_SCHEDULE: job.maker.name} if job.maker and job.maker.kind == SCHEDULE_KIND else {}


def recorded(text: str, model: str) -> PublishedVersion | None:
    """The version in a record, if it is that of this model; None if it cannot be read."""
    try:
        version = PublishedVersion.model_validate_json(text, extra="ignore")  # a later operator may write more
    except ValidationError:
        return None
    return version if version.model == model else None
