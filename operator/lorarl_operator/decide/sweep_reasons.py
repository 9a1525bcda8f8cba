"""Every reason that the operator gives of a sweep and its trials: in the status, and in Events.

`make generate` writes the table of docs/sweeps.md from them.
"""

from __future__ import annotations

from lorarl_operator.decide.reason_row import Row


class Sweeping(Row):
    """Why a sweep or a trial is in its phase, and what follows."""

    TRIALS_RUN = "TrialsRun", "Trials are unfinished, or begin.", "Wait."
    TRIALS_WAIT = (
        "TrialsWait",
        "No trial is unfinished, and those that are left cannot have a job now. The message names them.",
        "Do what the message says. They are tried again every minute.",
    )
    SUSPENDED = "Suspended", "`spec.suspend` is true.", "Set `spec.suspend: false` to continue."
    COMPLETE = "Complete", "Each trial has ended, and one at least succeeded.", "Nothing."
    NONE_SUCCEEDED = "NoneSucceeded", "Each trial has ended, and none succeeded.", "Look at the trials in the status."
    INVALID = (
        "Invalid",
        "The spec of the sweep cannot be used. The message says why.",
        "Delete it, and apply a corrected one: its trials never change.",
    )
    TRIAL_MADE = "TrialMade", "A trial has its job.", "Nothing."
    TRIAL_SUCCEEDED = "TrialSucceeded", "The training of a trial has finished.", "Nothing."
    TRIAL_FAILED = "TrialFailed", "The job of a trial has failed.", "Look at the job."
    TRIAL_DELETED = (
        "TrialDeleted",
        "Someone deleted the job of a trial before its end. It is not made again.",
        "Apply the trial as a job, if it is wanted.",
    )
    STOPPED = (
        "Stopped",
        "Early stopping suspended a trial. It keeps its checkpoints and adapters.",
        "Nothing, or name it in `stopping.exempt` to continue it.",
    )
    AT_RUNG = (
        "AtRung",
        "Successive halving holds a suspended trial at a rung, until it is known whether the trial continues.",
        "Wait, or name it in `stopping.exempt` to continue it now.",
    )
    STOPS_NONE = (
        "StopsNone",
        "`stopping` can stop no trial: each ends in the steps that it may always make.",
        "Set a smaller `startAfter`.",
    )
    REFUSED = (
        "Refused",
        "A trial cannot have a job: its values make a spec that is not valid.",
        "Apply a sweep with other values. The other trials continue.",
    )
    NAME_TAKEN = (
        "NameTaken",
        "A job of another owner has the name of a trial.",
        "Delete that job, or rename the sweep. It is tried again every minute.",
    )
    FORBIDDEN = (
        "Forbidden",
        "The operator may not create a trial's job now, because of a quota, a policy, a webhook, or a missing right.",
        "Correct what the message names. It is tried again every minute.",
    )
