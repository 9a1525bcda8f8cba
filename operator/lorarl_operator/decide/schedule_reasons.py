"""Every reason that the operator gives of a schedule: in the status, and in Events.

`make generate` writes the table of docs/schedules.md from them.
"""

from __future__ import annotations

from lorarl_operator.decide.reason_row import Row


class Scheduling(Row):
    """Why a schedule is in its phase, and what follows."""

    SCHEDULED = "Scheduled", "No job is unfinished. The message says when the next is due.", "Wait."
    JOB_RUNS = "JobRuns", "A job of the schedule is unfinished.", "Wait."
    SUSPENDED = "Suspended", "`spec.suspend` is true.", "Set `spec.suspend: false` to continue."
    INVALID = (
        "Invalid",
        "The spec cannot be used: its times, its zone or its template. The message says why.",
        "Apply a corrected schedule.",
    )
    JOB_MADE = "JobMade", "A job was created.", "Nothing."
    JOB_SUCCEEDED = "JobSucceeded", "The newest job has succeeded.", "Nothing."
    JOB_FAILED = "JobFailed", "The newest job has failed.", "Look at the job."
    JOB_DELETED = "JobDeleted", "The newest job was deleted before its end.", "Nothing. The next time starts another."
    REPLACED = (
        "Replaced",
        "`concurrencyPolicy: Replace` deletes an unfinished job, since the next is due.",
        "Choose times that are further apart, if this should not happen.",
    )
    SKIPPED = (
        "Skipped",
        "`concurrencyPolicy: Forbid` leaves out a time, since a job is unfinished.",
        "Nothing. When that job has ended, the newest time is made up for within `startingDeadlineSeconds`.",
    )
    MISSED = (
        "Missed",
        "Times have passed without a job: no operator ran, or the schedule was suspended or refused.",
        "Nothing. The newest of them is made up for within `startingDeadlineSeconds`, and older ones never.",
    )
    REFUSED = (
        "Refused",
        "The API server refuses the job by a rule of LoRARLJobs.",
        "Correct the template. It is tried again every minute.",
    )
    NAME_TAKEN = (
        "NameTaken",
        "A job of another owner has the name of the next one.",
        "Delete that job, or rename the schedule. It is tried again every minute.",
    )
    FORBIDDEN = (
        "Forbidden",
        "The operator may not create the job now, because of a quota, a policy, a webhook, or a missing right.",
        "Correct what the message names. It is tried again every minute.",
    )
