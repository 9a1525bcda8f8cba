"""`LoRARLSchedule`: a job at each time of a cron expression, as a CronJob makes Jobs."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from lorarl_api.rules import Rule
from lorarl_api.v1alpha1.common import MAX_SECONDS, Model
from lorarl_api.v1alpha1.job import Checked, LoRARLJobSpec
from lorarl_api.v1alpha1.kubernetes import AnnotationValue, LabelValue
from lorarl_api.v1alpha1.metadata import MAX_NAME, Metadata
from lorarl_api.v1alpha1.schedule_status import LoRARLScheduleStatus

SCHEDULE_KIND = "LoRARLSchedule"
MAX_SCHEDULE_NAME = MAX_NAME - 9
"""Longest name of a schedule. The name of a job is longer by a dash and the minutes since 1970, 8 digits until 2160."""
_MAX_KEPT = 100
_PART = "[0-9A-Za-z*?,/#-]+"

CronExpression = Annotated[
    str,
    Field(
        max_length=256,
        pattern=rf"^ *(@(yearly|annually|monthly|weekly|daily|midnight|hourly)|{_PART}( +{_PART}){{4}}) *$",
        examples=["0 3 * * *"],
        json_schema_extra={
            "expected": "five fields (minute, hour, day of the month, month, day of the week), or @yearly, @annually, "
            "@monthly, @weekly, @daily, @midnight or @hourly",
            "hint": 'Write for example "0 3 * * *" for 3:00 each day. A zone goes into timeZone.',
        },
    ),
]
TimeZone = Annotated[
    str,
    Field(
        min_length=1,
        max_length=64,
        pattern=r"^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$",
        examples=["Europe/Berlin"],
        json_schema_extra={"expected": "the name of a time zone, such as Europe/Berlin"},
    ),
]


class ScheduleTemplateMetadata(Model):
    """Labels and annotations of each job."""

    labels: dict[str, LabelValue] = Field(
        default_factory=dict,
        max_length=64,
        description="Labels. Those of Kueue on the schedule itself are passed on too.",
        examples=[{"kueue.x-k8s.io/queue-name": "research"}],
    )
    annotations: dict[str, AnnotationValue] = Field(default_factory=dict, max_length=64, description="Annotations.")


class ScheduleTemplate(Model):
    """The job of each time."""

    metadata: ScheduleTemplateMetadata = Field(
        default_factory=ScheduleTemplateMetadata, description="Labels and annotations of each job."
    )
    spec: LoRARLJobSpec = Field(description="Spec of a LoRARLJob.")


class LoRARLScheduleSpec(Checked):
    """When a job starts, and which."""

    schedule: CronExpression = Field(
        description="When a job starts, as in a CronJob: minute, hour, day of the month, month and day of the week, or "
        "@yearly, @annually, @monthly, @weekly, @daily, @midnight or @hourly.",
    )
    time_zone: TimeZone = Field("Etc/UTC", description="The time zone of schedule, by its name in the IANA database.")
    concurrency_policy: Literal["Allow", "Forbid", "Replace"] = Field(
        "Allow",
        description="If a job is unfinished when the next is due. Allow: they run side by side. Forbid: the next is "
        "left out until the first has ended. Replace: the first is deleted, which publishes its checkpoint.",
    )
    starting_deadline_seconds: int | None = Field(
        None,
        ge=1,
        le=MAX_SECONDS,
        description="Seconds after its time in which a job may still start, for example if no operator ran. "
        "Default: no limit.",
        examples=[3600],
    )
    suspend: bool = Field(False, description="Start no jobs. Those that run continue.")
    successful_jobs_history_limit: int = Field(
        3, ge=0, le=_MAX_KEPT, description="How many jobs that have succeeded are kept. Older ones are deleted."
    )
    failed_jobs_history_limit: int = Field(
        1, ge=0, le=_MAX_KEPT, description="How many jobs that have failed are kept. Older ones are deleted."
    )
    continue_from: Literal["none", "last", "best"] = Field(
        "none",
        description="The adapter that a job starts from. none: that of the template, or a new one. last: the newest "
        "adapter of the newest job that succeeded. best: the best checkpoint of that job, by checkpoint.keepBest. The "
        "first job starts as with none.",
    )
    template: ScheduleTemplate = Field(description="The job of each time. A change holds for jobs that start later.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "continueFrom",
            "self.continueFrom != 'best' || has(self.template.spec.checkpoint.keepBest)",
            "not be best unless the jobs choose a best checkpoint",
            "Add checkpoint.keepBest: {} to the template, with data.eval to choose by, or write last.",
        ),
        Rule(
            "continueFrom",
            "self.continueFrom == 'none' || !self.template.spec.adapter.dora",
            "be none with DoRA, for a job cannot start from such an adapter",
            "Remove continueFrom, or adapter.dora of the template.",
        ),
        Rule(
            "continueFrom",
            "self.continueFrom == 'none' || self.template.spec.checkpoint.deletionPolicy == 'Retain' || "
            "(self.successfulJobsHistoryLimit > 0 && !has(self.template.spec.ttlSecondsAfterFinished))",
            "be none if each job is deleted with its adapters before the next one can start from them",
            "Set checkpoint.deletionPolicy: Retain in the template, or keep the newest job: a "
            "successfulJobsHistoryLimit above 0, and no ttlSecondsAfterFinished.",
        ),
    )


class LoRARLSchedule(Checked):
    """A job at each time of a cron expression."""

    api_version: Literal["lorarl.io/v1alpha1"] = Field(description="Version of the API.")
    kind: Literal["LoRARLSchedule"] = Field(description="Kind of the object.")
    metadata: Metadata = Field(description="Name and labels.")
    spec: LoRARLScheduleSpec = Field(description="When a job starts, and which.")
    status: LoRARLScheduleStatus | None = Field(
        None, description="What became of the jobs. lorarl writes it, never the user."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "metadata.name",
            f"size(self.metadata.name) <= {MAX_SCHEDULE_NAME} && "
            "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            f"have at most {MAX_SCHEDULE_NAME} characters a-z, 0-9 and -, begin with a letter, and end with a letter "
            "or digit",
            "Use another name: those of its jobs begin with it.",
        ),
    )
