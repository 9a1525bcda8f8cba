"""What happens to a job beside its waits and the ends of its attempts."""

from __future__ import annotations

from lorarl_operator.decide.reason_row import Row


class News(Row):
    """What an Event or a condition reports that is neither a wait nor the end of an attempt."""

    RUNNING = "Running", "An attempt is training."
    RECOVERED = "Recovered", "An attempt that had lost workers continues with new ones."
    CHECKPOINTED = "Checkpointed", "The job has published its first checkpoint (a condition, without an Event)."
    STARTS_SHORT = (
        "StartsShort",
        "A job with `cluster.minNodes` starts on fewer nodes than `cluster.nodes`: see [elastic.md](elastic.md).",
    )
    SHRANK = "Shrank", "Such a job has lost nodes, and continues on those that are left."
    GREW = "Grew", "Such a job continues on more nodes than before."
    SCALED = (
        "Scaled",
        "Someone gave the job's RayCluster more workers than `cluster.nodes`. The message says how to undo it.",
    )
    EVICTION_WAITS = (
        "EvictionWaits",
        "A node of a job with `cluster.disruption: AfterCheckpoint` takes no new pods. Its eviction waits for a "
        "checkpoint.",
    )
    EVICTION_ALLOWED = (
        "EvictionAllowed",
        "The checkpoint for which an eviction waited is published, or the time for it is over.",
    )
    EVICTION_UNGUARDED = (
        "EvictionUnguarded",
        "Evictions do not wait, although `cluster.disruption` is `AfterCheckpoint`. The message says how to fix that.",
    )
    ENGINE_MISSING = (
        "EngineMissing",
        "A separate engine has no pod, so fewer generate. The message says what the pod waits for.",
    )
    ENGINE_FAILED = (
        "EngineFailed",
        "The pod of a separate engine ended by itself, as by its memory. KubeRay replaces it; the training continues.",
    )
    ENVIRONMENT_MISSING = (
        "EnvironmentMissing",
        "A place of `cluster.environments` has no pod, so the others play all episodes. The message says what the pod "
        "waits for.",
    )
    ENVIRONMENT_FAILED = (
        "EnvironmentFailed",
        "A pod of `cluster.environments` ended by itself, as by its memory. KubeRay replaces it; the training "
        "continues.",
    )
    RESUMED = "Resumed", "`spec.suspend` is false again."
    SUCCEEDED = "Succeeded", "The training has finished."
    TOO_LATE = "TooLate", "`trainer.steps` was raised after the job had ended. The message says how to continue."
    KEPT = (
        "Kept",
        "`ttlSecondsAfterFinished` has passed, but `publish` still has something to do. The message names the entries.",
    )
    REMOVING_CHECKPOINTS = (
        "RemovingCheckpoints",
        "The job is being deleted, and a Job removes its checkpoints. The message says what that waits for.",
    )
    CHECKPOINTS_REMOVED = (
        "CheckpointsRemoved",
        "The checkpoints of a deleted job are gone. The message names what stays.",
    )
    CHECKPOINTS_LEFT = "CheckpointsLeft", "Checkpoints of a deleted job stay in the store. The message says why."
    CHANGE_REFUSED = (
        "ChangeRefused",
        "The API server refuses what the operator has to do: a policy of the cluster forbids it, or a right is "
        "missing. The message says what, and it is tried again.",
    )
    OPERATOR_FAULT = (
        "OperatorFault",
        "The operator failed at this job, and tries again. The message is its error, for a report of the fault.",
    )
