"""LoRARLSchedules for tests, and times that have just come."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from lorarl_api.schedules.manifest import job_name
from support.cluster.client import Api, Object
from support.cluster.lorarljobs import lorarljob

KIND = "LoRARLSchedule"
_NOW = datetime.now(UTC).replace(second=0, microsecond=0)


def days_ago(days: int) -> str:
    """The cron expression of a time once a year, which last came so many days ago."""
    moment = _NOW - timedelta(days=days)
    return f"{moment.minute} {moment.hour} {moment.day} {moment.month} *"


def job_of(days: int) -> str:
    """The name of the job of schedule `nightly` for that time."""
    return job_name("nightly", _NOW - timedelta(days=days))


def lorarlschedule(namespace: str, *, labels: dict[str, str] | None = None, **spec: Any) -> Object:
    """The schedule `nightly` of small jobs on CPUs, whose time came nine days ago."""
    usual = {"schedule": days_ago(9), "template": {"spec": lorarljob(namespace, "any")["spec"]}}
    about = {"name": "nightly", "namespace": namespace, "labels": labels or {}}
    return {"apiVersion": "lorarl.io/v1alpha1", "kind": KIND, "metadata": about, "spec": usual | spec}


def create_due(api: Api, schedule: Object) -> None:
    """Create a schedule as if its last job had been 300 days ago: its time has come once since then."""
    name, namespace = schedule["metadata"]["name"], schedule["metadata"]["namespace"]
    api.create({**schedule, "spec": schedule["spec"] | {"suspend": True}})
    api.wait(KIND, name, namespace, lambda one: one["status"].get("phase") == "Suspended")
    last = (_NOW - timedelta(days=300)).isoformat().replace("+00:00", "Z")
    api.patch(KIND, name, {"status": {"lastScheduleTime": last}}, namespace, subresource="status")
    api.patch(KIND, name, {"spec": {"suspend": False}}, namespace)
