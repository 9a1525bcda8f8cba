"""Every reason why an adapter is served, or is not: those of `status.published` and of their Events.

`make generate` writes the table of docs/publishing.md from them.
"""

from __future__ import annotations

from lorarl_operator.decide.reason_row import Row


class Publishing(Row):
    """Why an entry of `spec.publish` is in its state, and what follows."""

    SERVING = "Serving", "The wanted version answers, and no other one of this entry is left.", "Nothing."
    PINNED = (
        "Pinned",
        "The version of `step` answers. Better ones wait until `step` is removed.",
        "Remove `step` to serve the best one again.",
    )
    LOADING = "Loading", "The servers load the version. The one before it answers meanwhile.", "Wait."
    NO_RESULT = "NoResult", "No checkpoint has been chosen by its evaluation yet.", "Wait for the next evaluation."
    TRAINING_RUNS = "TrainingRuns", "`when` is `End`, and the training has not succeeded yet.", "Wait."
    BELOW_GATE = (
        "BelowGate",
        "The best checkpoint is below `minimum`, or above `maximum`.",
        "Wait for a better one, or change the gate.",
    )
    NOT_BETTER = (
        "NotBetter",
        "The best checkpoint is not better than the version that was accepted before, perhaps of an earlier job.",
        "Wait for a better one. To start again from nothing, remove the entry, and add it again when it has gone.",
    )
    NO_DIGEST = (
        "NoDigest",
        "The training does not report the SHA-256 of its best checkpoint, as trainer images before this field.",
        "Use a newer trainer image: the next best checkpoint has it.",
    )
    NEVER_SERVED = (
        "NeverServed",
        "`step` names a version that was never served, so no gate has let it pass.",
        "Name a step of `status.published[].versions`.",
    )
    SUPERSEDED = (
        "Superseded",
        "A later job of the same schedule publishes. It has taken over what was served.",
        "Nothing. Look at the job that the message names.",
    )
    NOT_INSTALLED = (
        "NotInstalled",
        "The cluster does not have the kind that the target needs.",
        "Install what the message names, or remove the entry.",
    )
    FORBIDDEN = (
        "Forbidden",
        "The operator may not use the target's objects in this namespace.",
        "Ask an administrator to set the chart's value that the message names.",
    )
    NO_SERVICE = (
        "NoService",
        "The object that the entry names does not exist, or does not accept adapters.",
        "Do what the message says.",
    )
    DOES_NOT_FIT = (
        "DoesNotFit",
        "The object that the entry names says that it cannot serve the adapter: its base model, rank or number. The "
        "version before stays.",
        "Change what the message names, or the entry.",
    )
    NAME_TAKEN = (
        "NameTaken",
        "Something of another owner has the name of the version. lorarl never takes it over.",
        "Delete it, or choose another `name`.",
    )
    REFUSED = "Refused", "The API server refuses the object. The message is its own.", "Correct what the message names."
    LOAD_FAILED = (
        "LoadFailed",
        "The servers cannot load the version. The message is theirs. The one before it stays.",
        "Correct what the message names. They try again by themselves.",
    )
    WITHDRAWING = "Withdrawing", "The entry was removed, and its versions are being removed from the servers.", "Wait."
    WITHDRAWN = "Withdrawn", "The entry was removed, and nothing of it is served any more (only an Event).", "Nothing."
