"""A job that publishes, servers that load what they are given, and a publisher that may be killed anywhere."""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any

from lorarl_api.v1alpha1 import PublishSpec, TargetName
from lorarl_operator.decide import parse
from lorarl_operator.decide.models import Job
from lorarl_operator.decide.publishing import PublishDecision, decide_publishing, targets_of
from lorarl_operator.decide.served import Change, Fault, Put, Remove, Servers
from lorarl_operator.manifests.model_adapter import ModelAdapters
from support.published import best
from unit.operator.observed_world import START, raw_job

ENTRY: dict[str, Any] = {"name": "sums", "minimum": 0.5, "aibrix": {"podSelector": {"app": "vllm"}}}


class World:
    """What the API server has: the job's status, and ModelAdapters by their names."""

    def __init__(self, *entries: dict[str, Any]) -> None:
        self.entries = list(entries or [ENTRY])
        self.status: dict[str, Any] = {"phase": "Running"}
        self.objects: dict[str, dict[str, Any]] = {}
        self.faults: dict[str, Fault] = {}
        self.unlisted: Fault | None = None
        self.now = START
        self.created: list[dict[str, Any]] = []
        self.events: list[str] = []

    def look(self) -> PublishDecision:
        job = parse.job(raw_job(spec={"publish": self.entries}, status=copy.deepcopy(self.status)))
        specs = [PublishSpec.model_validate(one) for one in self.entries]
        asked = {one: self.listed(job, one) for one in targets_of([job])}
        return decide_publishing(job, specs, asked, self.faults, self.now)

    def listed(self, job: Job, target: TargetName) -> Servers | Fault:
        assert target == "aibrix"
        return self.unlisted or ModelAdapters(job, self.objects.values())

    def step(self, killed_after: int | None = None) -> PublishDecision:
        """Decide and carry it out; the publisher dies after so many writes."""
        self.now += timedelta(seconds=1)
        decision = self.look()
        writes = ([decision.status] if decision.status is not None else []) + list(decision.steps)
        for write in writes[:killed_after]:
            self._write(write)
        if killed_after is None or decision.status is None or killed_after > 0:
            self.events += [event.reason for event in decision.events]
        return decision

    def settle(self) -> None:
        """Repeat until nothing more is decided."""
        for _ in range(30):
            decision = self.step()
            if decision.status is None and not decision.steps:
                return
        raise AssertionError(f"it never stops writing: {self.status}")

    def _write(self, write: Any) -> None:
        match write:
            case dict():
                self.status = {"phase": self.status["phase"], **self._trainers(), **copy.deepcopy(write)}
            case Put(manifest=manifest):
                name = manifest["metadata"]["name"]
                assert name not in self.objects, "it is created once"
                made = copy.deepcopy(manifest)
                made["metadata"]["uid"] = f"uid-{len(self.created)}"
                self.objects[name] = made
                self.created.append(made)
            case Change():
                self.change(write)
            case Remove(name=name):
                self.objects.pop(name, None)

    def change(self, write: Change) -> None:
        self.objects[write.name]["spec"] = merged(self.objects[write.name]["spec"], write.patch["spec"])

    def _trainers(self) -> dict[str, Any]:
        return {"best": self.status["best"]} if "best" in self.status else {}

    def loads(self, name: str, ready: int = 2, desired: int = 2) -> None:
        pods = [f"vllm-{number}" for number in range(ready)]
        self.objects[name]["status"] = {"phase": "Running", "instances": pods, "desiredReplicas": desired}

    def fails(self, name: str, message: str) -> None:
        said = [{"type": "Ready", "status": "False", "reason": "ModelAdapterLoadingError", "message": message}]
        self.objects[name]["status"] = {"phase": "Failed", "conditions": said}

    def reports(self, step: int, value: float, **others: Any) -> None:
        self.status["best"] = best(step, value, **others)

    @property
    def entry(self) -> dict[str, Any]:
        found: dict[str, Any] = self.status["published"][0]
        return found

    @property
    def says(self) -> tuple[str, str, str | None]:
        """State, reason and the model that answers."""
        return self.entry["state"], self.entry["reason"], self.entry.get("serving")

    @property
    def condition(self) -> dict[str, Any]:
        (found,) = self.status["conditions"]
        return dict(found)


def merged(before: Any, patch: Any) -> Any:
    """A JSON merge patch."""
    if not isinstance(patch, dict):
        return patch
    after = dict(before) if isinstance(before, dict) else {}
    for key, value in patch.items():
        if value is None:
            after.pop(key, None)
        else:
            after[key] = merged(after.get(key), value)
    return after
