"""What follows when an attempt ends: a job's own rules."""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

from pydantic import Field

from lorarl_api.rules import Rule
from lorarl_api.v1alpha1.common import Model

RetryAction = Literal["Fail", "Retry", "Ignore"]
RetryReason = Literal[
    "InvalidInput",
    "GradientNotFinite",
    "PolicyDrift",
    "StaleAdapter",
    "RewardServerFailed",
    "RolloutServerFailed",
    "StorageFailed",
    "WorkerFailed",
    "Failed",
    "OutOfMemory",
    "DiskFull",
    "HeadExited",
    "WorkerExited",
    "WorkerUnreachable",
    "ContainerRefused",
    "InitFailed",
    "SubmissionFailed",
    "Stalled",
    "Stopped",
    "RayJobFailed",
    "PodRefused",
    "PodDeleted",
    "RayJobDeleted",
    "HeadLost",
    "NodeLost",
    "Interrupted",
    "TwoHeads",
]
RETRY_REASONS: frozenset[str] = frozenset(get_args(RetryReason))
"""Reasons of an attempt's end for which a job may choose what follows. The others are limits, or ends of the job."""


class RetryRule(Model):
    """What follows if an attempt ends for one reason, or with one exit code."""

    reason: RetryReason | None = Field(
        None, description="Reason of the end, as in the table of docs/jobs.md.", examples=["StorageFailed"]
    )
    exit_code: int | None = Field(
        None,
        ge=1,
        le=255,
        description="Exit code of the container that ended: Ray's, an init container's, or the submitter's.",
        examples=[75],
    )
    action: RetryAction = Field(
        description="Fail: the job fails. Retry: the end counts against backoffLimit, and the next attempt follows. "
        "Ignore: it counts as a preemption, which only maxPreemptionsWithoutProgress limits.",
        examples=["Fail"],
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "reason",
            "has(self.reason) != has(self.exitCode)",
            "have either reason or exitCode",
            "Set one of them; write two rules for two causes.",
        ),
    )
