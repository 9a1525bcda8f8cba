"""A schedule, a clock that may be set, jobs that run and end, and an operator that may be killed anywhere."""

from __future__ import annotations

import copy
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

from lorarl_api.schedules.manifest import job_name
from lorarl_api.v1alpha1 import LoRARLScheduleStatus
from lorarl_operator.decide import parse
from lorarl_operator.decide.models import Maker
from lorarl_operator.decide.not_made import NotMade
from lorarl_operator.decide.schedule import decide_schedule
from lorarl_operator.decide.schedule_models import Remove, ScheduleDecision, Start
from lorarl_operator.decide.schedule_reasons import Scheduling
from lorarl_operator.decide.status import timestamp
from unit.operator.observed_world import SPEC, START

OWNER = Maker("LoRARLSchedule", "nightly", "schedule-uid")
FINISHED = ("Succeeded", "Failed")


def schedule_spec(**parts: Any) -> dict[str, Any]:
    """A job at each full hour."""
    usual = {"schedule": "0 * * * *", "template": {"spec": SPEC}}
    return {key: value for key, value in (usual | parts).items() if value is not None}


class World:
    """What the API server has: the schedule and its jobs. `refuses` is its answer to each new job."""

    def __init__(self, now: datetime = START, **parts: Any) -> None:
        self.spec = schedule_spec(**parts)
        self.labels: dict[str, str] = {}
        self.status: dict[str, Any] = {"observedGeneration": -1, "conditions": []}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.made: Counter[str] = Counter()
        self.refuses: Scheduling | None = None
        self.not_made: NotMade | None = None
        self.events: list[tuple[str, str]] = []
        self.now = self.created = now

    def look(self) -> ScheduleDecision:
        about = {"namespace": "team", "name": "nightly", "uid": "schedule-uid", "resourceVersion": "1", "generation": 1}
        about |= {"creationTimestamp": timestamp(self.created), "labels": self.labels}
        raw = {"metadata": about, "spec": self.spec, "status": self.status}
        found = {name: parse.job(job) for name, job in self.jobs.items()}
        own = {name: job for name, job in found.items() if job.maker == OWNER}
        return decide_schedule(parse.schedule(raw), own, self.not_made, self.now)

    def step(self, killed_after: int | None = None) -> ScheduleDecision:
        """Decide, and carry it out; the operator dies after so many writes, and its successor knows nothing of it."""
        decision = self.look()
        writes = ([decision.status] if decision.status is not None else []) + list(decision.actions)
        for write in writes[:killed_after]:
            self._write(write)
        if killed_after is None:
            self.events += [(str(event.reason), event.message) for event in decision.events]
        else:
            self.not_made = None
        return decision

    def settle(self) -> None:
        """Repeat until nothing more is decided."""
        for _ in range(50):
            decision = self.step()
            if decision.status is None and not decision.actions:
                return
        raise AssertionError(f"it never stops writing: {self.status}")

    def passes(self, hours: float = 0, minutes: float = 0) -> None:
        """Time passes while an operator runs."""
        self.now += timedelta(hours=hours, minutes=minutes)
        self.settle()

    def _write(self, write: Any) -> None:
        match write:
            case dict():
                LoRARLScheduleStatus.model_validate(write)
                self.status = copy.deepcopy(write)
            case Remove(job=job):
                self.jobs.pop(job.name, None)
            case Start(manifest=manifest):
                self._create(manifest)

    def _create(self, manifest: dict[str, Any]) -> None:
        name, later = manifest["metadata"]["name"], self.now + timedelta(seconds=60)
        self.not_made = None
        if self.refuses is not None:
            self.not_made = NotMade(self.refuses, "no", self.refuses is Scheduling.REFUSED, later)
        elif name in self.jobs:
            if parse.job(self.jobs[name]).maker != OWNER:
                self.not_made = NotMade(Scheduling.NAME_TAKEN, f"{name} exists", False, later)
        else:
            made = copy.deepcopy(manifest)
            made["metadata"] |= {"uid": f"uid-{name}-{self.made[name]}", "resourceVersion": "1", "generation": 1}
            self.jobs[name] = made
            self.made[name] += 1

    def ends(self, name: str, phase: str = "Succeeded", **status: Any) -> None:
        """The job ends, with an adapter if it succeeds."""
        said = {"phase": phase, "completionTime": timestamp(self.now)}
        if phase == "Succeeded":
            adapter = {"uri": f"s3://{name}/last", "sha256": "a" * 64, "step": 9, "version": 10}
            best = {"uri": f"s3://{name}/best", "sha256": "b" * 64, "step": 5, "metric": "eval_score", "value": 0.5}
            said |= {"adapter": adapter, "best": best}
        self.jobs[name]["status"] = said | status

    @property
    def unfinished(self) -> list[str]:
        return sorted(name for name, job in self.jobs.items() if self.phase(name) not in FINISHED)

    def phase(self, name: str) -> str:
        found: str = self.jobs[name].get("status", {}).get("phase", "Pending")
        return found

    def reasons(self) -> list[str]:
        return [reason for reason, _ in self.events]

    def condition(self, kind: str) -> dict[str, Any]:
        return next((one for one in self.status["conditions"] if one["type"] == kind), {})


def hour(number: int) -> str:
    """The job of this many hours after the start."""
    return job_name("nightly", START + timedelta(hours=number))
