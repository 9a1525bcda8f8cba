"""Schedules that are refused, and why. The API server refuses them too, unless Python alone can see it."""

from __future__ import annotations

from typing import Any

from unit.contract.manifests import Case, Changes, changed, manifest

JOB = "spec.template.spec"


def schedule(changes: Changes | None = None) -> dict[str, Any]:
    """The smallest valid schedule with `changes`, whose jobs a cluster can run."""
    job = manifest({"spec.checkpoint.uri": "s3://team/adapters", "spec.data.train.uri": "s3://team/train.jsonl"})
    job = changed(job, {"spec.model.uri": "hf://example/tiny"})
    smallest = {
        "apiVersion": "lorarl.io/v1alpha1",
        "kind": "LoRARLSchedule",
        "metadata": {"name": "smallest"},
        "spec": {"schedule": "0 3 * * *", "template": {"spec": job["spec"]}},
    }
    return changed(smallest, changes or {})


VALUES = [
    ({"spec.schedule": "60 3 * * *"}, 'spec.schedule: got "60 3 * * *" (bad minute), expected minutes from 0 to 59;'),
    ({"spec.schedule": "0 3 31 2 *"}, "(bad day-of-month), expected days from 1 to 31 that one of its months has,"),
    ({"spec.schedule": "0 3 * * MOO"}, "(bad day-of-week), expected days of the week from 0 to 7"),
    ({"spec.schedule": "*/0 3 * * *"}, "expected minutes from 0 to 59; ranges that rise, and steps of at least 1."),
    ({"spec.timeZone": "Europe/Nowhere"}, 'spec.timeZone: got "Europe/Nowhere", expected a known time zone.'),
    ({"spec.timeZone": "Europe"}, "Write a name of the IANA database, such as Europe/Berlin or Etc/UTC."),
]
"""What only Python and the operator see."""
REFUSED = [
    ({"spec.schedule": "@every 1h"}, "spec.schedule"),
    ({"spec.schedule": "0 3 * *"}, "spec.schedule"),
    ({"spec.schedule": "0 0 3 * * *"}, "spec.schedule"),
    ({"spec.schedule": "TZ=Europe/Berlin 0 3 * * *"}, "spec.schedule"),
    ({"spec.schedule": "@Daily"}, "spec.schedule"),
    ({"spec.timeZone": "../etc/passwd"}, "spec.timeZone"),
    ({"spec.concurrencyPolicy": "Wait"}, "spec.concurrencyPolicy"),
    ({"spec.startingDeadlineSeconds": 0}, "spec.startingDeadlineSeconds"),
    ({"spec.failedJobsHistoryLimit": 101}, "spec.failedJobsHistoryLimit"),
    ({f"{JOB}.adapter.rank": 0}, f"{JOB}.adapter.rank"),
    ({f"{JOB}.trainer.stepz": 1}, "stepz"),
]
"""Values that no field takes."""
CASES = [
    Case(
        "a name that is too long",
        {"metadata.name": "a" * 34},
        {"metadata.name": "a" * 33},
        "metadata.name",
        "those of its jobs begin with it",
    ),
    Case(
        "the best of none",
        {"spec.continueFrom": "best"},
        {"spec.continueFrom": "last"},
        "spec.continueFrom",
        "Add checkpoint.keepBest",
    ),
    Case(
        "adapters that go with their jobs",
        {
            "spec.continueFrom": "last",
            "spec.successfulJobsHistoryLimit": 0,
            f"{JOB}.checkpoint.deletionPolicy": "Delete",
        },
        {"spec.continueFrom": "last", "spec.successfulJobsHistoryLimit": 0},
        "spec.continueFrom",
        "no ttlSecondsAfterFinished",
    ),
    Case(
        "adapters that go some time after",
        {
            "spec.continueFrom": "last",
            f"{JOB}.ttlSecondsAfterFinished": 60,
            f"{JOB}.checkpoint.deletionPolicy": "Delete",
        },
        {"spec.continueFrom": "last", f"{JOB}.checkpoint.deletionPolicy": "Delete"},
        "spec.continueFrom",
        "Set checkpoint.deletionPolicy: Retain",
    ),
    Case(
        "a rule of the job",
        {f"{JOB}.adapter.excludeModules": ["all-linear"]},
        {f"{JOB}.adapter.excludeModules": ["q_proj"]},
        f"{JOB}.adapter.excludeModules",
        "Name the modules to exclude",
    ),
]
