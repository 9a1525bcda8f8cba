"""What an installation may choose, with its defaults."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """How the operator decides and builds. All times are in seconds.

    Attributes:
        trainer_image: Image of jobs that name none in `cluster.image`.
        backoff_seconds: Wait before the first retry of a failed attempt; doubles with each failure.
        backoff_limit_seconds: Longest wait before a retry.
        retry_after_preemption_seconds: Wait before the retry of an attempt that was preempted or lost its machine; doubles with each
            preemption where one follows soon after the other.
        preemption_limit_seconds: Longest wait before such a retry.
        settle_seconds: How long an end whose cause is not known yet waits for the news of pods and trainer: they come on other watches.
        stuck_seconds: An attempt that does not run after this long is explained, from events and from Kueue's Workload.
        refused_seconds: Wait before something that the API server refused is tried again.
        refused_briefly_seconds: The same where it may be over in a moment: a name that somebody else holds, a quota that is not
            counted yet.
        pods_gone_seconds: How long after their grace period pods that are being deleted may hold up the next attempt; on a lost node they
            never go.
        keep_head_seconds: How long the head pod of a finished job stays for its logs, where no queue asks for it to go at once.
        cleanup_seconds: How long the removal of a deleted job's checkpoints may take before the operator gives way.
    """

    trainer_image: str
    backoff_seconds: float = 10.0
    backoff_limit_seconds: float = 360.0
    retry_after_preemption_seconds: float = 1.0
    preemption_limit_seconds: float = 60.0
    settle_seconds: float = 3.0
    stuck_seconds: float = 5.0
    refused_seconds: float = 30.0
    refused_briefly_seconds: float = 3.0
    pods_gone_seconds: float = 10.0
    keep_head_seconds: int = 600
    cleanup_seconds: int = 900
