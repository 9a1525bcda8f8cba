"""A sweep, jobs that train, end, are suspended and deleted, and an operator that may be killed anywhere."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

from lorarl_api.v1alpha1 import LoRARLSweepStatus
from lorarl_operator.decide import parse
from lorarl_operator.decide.models import Maker
from lorarl_operator.decide.not_made import NotMade
from lorarl_operator.decide.sweep import decide_sweep
from lorarl_operator.decide.sweep_models import DeleteSweep, Make, Suspend, SweepDecision, Try
from lorarl_operator.decide.sweep_reasons import Sweeping
from unit.operator.observed_world import SPEC, START

AXIS = {"path": "spec.trainer.seed", "values": [0, 1, 2, 3]}
OWNER = Maker("LoRARLSweep", "sums", "sweep-uid")
FINISHED = ("Succeeded", "Failed")
UNFINISHED = ("Pending", "Starting", "Running", "Suspending", "Restarting")


def sweep_spec(**parts: Any) -> dict[str, Any]:
    """A sweep over four seeds, two at a time, for the best evaluation."""
    template = {"spec": SPEC | {"checkpoint": SPEC["checkpoint"] | {"keepBest": {}}, "data": DATA}}
    usual = {"template": template, "over": [AXIS], "parallelism": 2, "objective": {"metric": "best"}}
    return {key: value for key, value in (usual | parts).items() if value is not None}


DATA = SPEC["data"] | {"eval": {"uri": "s3://team/eval.jsonl", "promptField": "q", "answerField": "a"}}


def stopping(**median: int) -> dict[str, Any]:
    """Early stopping by the median."""
    return {"median": {"startAfter": 5, "minTrials": 1, **median}}


def name(seed: int) -> str:
    return f"sums-seed-{seed}"


class World:
    """What the API server has: the sweep and its jobs. `refuses` names jobs that it does not take, with its answer."""

    def __init__(self, **parts: Any) -> None:
        self.spec = sweep_spec(**parts)
        self.labels: dict[str, str] = {}
        self.status: dict[str, Any] = {"observedGeneration": -1, "conditions": []}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.made: Counter[str] = Counter()
        self.refuses: dict[str, tuple[Sweeping, bool]] = {}
        self.not_made: dict[str, NotMade] = {}
        self.events: list[str] = []
        self.deleted = False
        self.now = START
        self.most_unfinished = 0

    def look(self) -> SweepDecision:
        about = {"namespace": "team", "name": "sums", "uid": "sweep-uid", "resourceVersion": "1", "generation": 1}
        raw = {"metadata": about | {"labels": self.labels}, "spec": self.spec, "status": self.status}
        found = {name: parse.job(job) for name, job in self.jobs.items()}
        own = {name: job for name, job in found.items() if job.maker == OWNER}
        return decide_sweep(parse.sweep(raw), own, self.not_made, self.now)

    def step(self, killed_after: int | None = None) -> SweepDecision:
        """Decide, and carry it out; the operator dies after so many writes, and its successor knows nothing of it."""
        self.now += timedelta(seconds=1)
        decision = self.look()
        writes = ([decision.status] if decision.status is not None else []) + list(decision.actions)
        for write in writes[:killed_after]:
            self._write(write)
        if killed_after is None:
            self.events += [event.reason for event in decision.events]
        else:
            self.not_made = {}
        return decision

    def settle(self) -> None:
        """Repeat until nothing more is decided."""
        for _ in range(100):
            decision = self.step()
            if decision.status is None and not decision.actions:
                return
        raise AssertionError(f"it never stops writing: {self.status}")

    def _write(self, write: Any) -> None:
        match write:
            case dict():
                LoRARLSweepStatus.model_validate(write)
                self.status = copy.deepcopy(write)
            case Make(trial=trial, manifest=manifest):
                self._create(trial, manifest)
            case Try(trial=trial):
                assert not self.not_made[trial].passes, "it is asked once"
                later = self.now + timedelta(seconds=60)
                gone = trial not in self.refuses
                self.not_made[trial] = replace(self.not_made[trial], until=self.now if gone else later, passes=gone)
            case Suspend(trial=trial, uid=uid, suspend=suspend):
                if trial in self.jobs and self.jobs[trial]["metadata"]["uid"] == uid:
                    self.jobs[trial]["spec"]["suspend"] = suspend
                    if suspend and self.phase(trial) == "Pending" and not self.is_stopped(trial):
                        self.set_phase(trial, "Suspended")
            case DeleteSweep():
                self.deleted = True

    def _create(self, trial: str, manifest: dict[str, Any]) -> None:
        self.not_made.pop(trial, None)
        later = self.now + timedelta(seconds=60)
        if trial in self.refuses:
            reason, for_good = self.refuses[trial]
            self.not_made[trial] = NotMade(reason, f"no {trial}", for_good, later)
        elif trial in self.jobs:
            if parse.job(self.jobs[trial]).maker != OWNER:
                self.not_made[trial] = NotMade(Sweeping.NAME_TAKEN, f"{trial} exists", False, later)
        else:
            made = copy.deepcopy(manifest)
            made["metadata"] |= {"uid": f"uid-{trial}-{self.made[trial]}", "resourceVersion": "1", "generation": 1}
            self.jobs[trial] = made
            self.made[trial] += 1
            self.most_unfinished = max(self.most_unfinished, self.unfinished)

    @property
    def unfinished(self) -> int:
        """Jobs that have machines, or wait for some."""
        return sum(self.phase(name) in UNFINISHED and not self._rests(name) for name in self.jobs)

    def _rests(self, job: str) -> bool:
        """Whether a job that its queue keeps stopped would stay so, because it is suspended too."""
        return self.is_stopped(job) and bool(self.jobs[job]["spec"].get("suspend"))

    def is_stopped(self, job: str) -> bool:
        """Whether an administrator of its queue has stopped a job."""
        return bool(self.jobs[job].get("status", {}).get("conditions"))

    def stops(self, job: str) -> None:
        """An administrator of its queue stops a job. No suspension changes what it says then."""
        waits = {"type": "Running", "status": "False", "reason": "QueueStopped"}
        self.set_phase(job, "Pending", conditions=[waits])

    def starts(self, job: str) -> None:
        """The administrator lets it go again."""
        self.set_phase(job, "Suspended" if self._rests(job) else "Pending", conditions=[])

    def phase(self, job: str) -> str:
        found: str = self.jobs[job].get("status", {}).get("phase", "Pending")
        return found

    def set_phase(self, job: str, phase: str, **status: Any) -> None:
        self.jobs[job].setdefault("status", {}).update({"phase": phase, **status})
        self.most_unfinished = max(self.most_unfinished, self.unfinished)

    def reports(self, job: str, step: int, value: float, total: int = 100) -> None:
        """What a training says after a step."""
        best = {"uri": f"s3://{job}/{step}", "step": step, "metric": "eval_score", "value": value, "sha256": "a" * 64}
        self.set_phase(job, "Running", step=step, totalSteps=total, best=best, metrics={"evalScore": value})

    def obeys(self, job: str) -> None:
        """The job does what `spec.suspend` says."""
        suspend, phase = self.jobs[job]["spec"].get("suspend", False), self.phase(job)
        if self.is_stopped(job):
            return
        if suspend and phase not in FINISHED:
            self.set_phase(job, "Suspended")
        elif not suspend and phase == "Suspended":
            self.set_phase(job, "Pending")

    def trial(self, seed: int) -> dict[str, Any]:
        found: dict[str, Any] = next(one for one in self.status["trials"] if one["name"] == name(seed))
        return found

    @property
    def phases(self) -> list[str]:
        return [one["phase"] for one in self.status["trials"]]
