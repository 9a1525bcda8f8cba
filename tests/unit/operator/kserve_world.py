"""A world of `publishing_world` whose servers are KServe's: a list that others write too, and pods that follow it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from typing import Any

from lorarl_api.v1alpha1 import TargetName
from lorarl_operator.decide import parse
from lorarl_operator.decide.models import Job
from lorarl_operator.decide.served import Change, Fault, Servers
from lorarl_operator.decide.valid_spec import checked_spec
from lorarl_operator.manifests.llm_inference_service import LlmInferenceServices
from unit.operator.observed_world import Raw, raw_job
from unit.operator.publishing_world import World, merged

KSERVE: Raw = {"name": "sums", "minimum": 0.5, "kserve": {"service": "qwen"}}
SPEC = checked_spec(parse.job(raw_job()))
ACCEPTED = {"lorarl.io/accepts-adapters": "true"}
THEIRS: Raw = {"name": "theirs", "uri": "hf://others/theirs", "framework": "lora"}


class KserveWorld(World):
    """What the API server has: LLMInferenceServices by their names, and the pods of each."""

    def __init__(self, *entries: dict[str, Any], names: Iterable[str] = ("qwen",)) -> None:
        super().__init__(*(entries or [KSERVE]))
        self.services: dict[str, Raw] = {}
        self.pods: dict[str, list[Raw]] = {}
        self.conflicts = 0
        self.theirs: list[Raw] = []
        self._versions = iter(range(1, 10**6))
        for name in names:
            self.create(name)

    def create(self, name: str = "qwen", **lora: Any) -> None:
        """Someone creates a service, and its pods start."""
        model = {"uri": "hf://Qwen/Qwen2.5-0.5B", "name": "base", "lora": {"maxRank": 64, **lora}}
        self.services[name] = {
            "metadata": {
                "name": name,
                "uid": f"uid-{next(self._versions)}",
                "resourceVersion": str(next(self._versions)),
                "generation": 1,
                "labels": dict(ACCEPTED),
            },
            "spec": {"model": model},
        }
        self.roll(name)

    def delete(self, name: str = "qwen") -> None:
        del self.services[name]
        del self.pods[name]

    def edit(self, spec: Raw, name: str = "qwen") -> None:
        """Someone else changes the service."""
        self._store(name, merged(self.services[name], {"spec": spec}))

    def listed(self, job: Job, target: TargetName) -> Servers | Fault:
        if target == "aibrix":
            return super().listed(job, target)
        accepting = [one for one in self.services.values() if one["metadata"]["labels"] == ACCEPTED]
        pods = [one for pods in self.pods.values() for one in pods]
        return self.unlisted or LlmInferenceServices(job, SPEC, copy.deepcopy(accepting), pods)

    def change(self, write: Change) -> None:
        if write.kind != "LLMInferenceService":
            super().change(write)
            return
        before = self.services.get(write.name)
        about = dict(write.patch["metadata"])
        if self.conflicts or before is None or about.pop("resourceVersion") != before["metadata"]["resourceVersion"]:
            self.conflicts = max(0, self.conflicts - 1)
            return  # The API server refuses it, and the publisher looks again.
        assert about.pop("uid") == before["metadata"]["uid"]
        assert set(about) == {"annotations"} and set(write.patch) <= {"metadata", "spec"}
        self._store(write.name, merged(before, {**write.patch, "metadata": about}))

    def _store(self, name: str, after: Raw) -> None:
        before, after = self.services[name], copy.deepcopy(after)
        after["metadata"]["resourceVersion"] = str(next(self._versions))
        after["metadata"]["generation"] += after["spec"] != before["spec"]
        self.services[name] = after

    def adapters(self, name: str = "qwen") -> list[Raw]:
        return list(self.services[name]["spec"]["model"]["lora"].get("adapters") or [])

    def ours(self, name: str = "qwen") -> set[str]:
        return {one["name"] for one in self.adapters(name)} - {"theirs"}

    def roll(self, name: str = "qwen", *, new: int = 2, old: int = 0) -> None:
        """KServe starts pods with the present list, and `old` of those before are left."""
        before = [one for one in self.pods.get(name, []) if _ready(one)]
        self.pods[name] = before[:old] + [self._pod(name) for _ in range(new)]
        said = {"type": "Ready", "status": "True"}
        status = {"observedGeneration": self.services[name]["metadata"]["generation"], "conditions": [said]}
        self.services[name]["status"] = status

    def crash(self, why: str, name: str = "qwen") -> None:
        """KServe starts a pod with the present list that does not get ready. Those before stay, and so does Ready."""
        old = len(self.pods[name])
        self.roll(name, new=0, old=old)
        waits = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}}
        ended = {"terminated": {"exitCode": 1, "message": why}}
        broken = self._pod(name, ready="False")
        broken["status"]["containerStatuses"] = [{"name": "main", "state": waits, "lastState": ended}]
        self.pods[name].append(broken)

    def _pod(self, name: str, ready: str = "True") -> Raw:
        modules = [
            f"'{json.dumps({'name': prefix + one['name'], 'path': '/mnt/lora/' + one['name']})}'"
            for one in self.adapters(name)
            for prefix in ("", "publishers/team/models/")
        ]
        arguments = ["--enable-lora", "--lora-modules", *modules, "--port=8000"] if modules else ["--port=8000"]
        return {
            "metadata": {
                "name": f"{name}-kserve-{next(self._versions)}",
                "labels": {"app.kubernetes.io/name": name},
            },
            "spec": {"containers": [{"name": "sidecar"}, {"name": "main", "args": arguments}]},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        }

    def add_theirs(self) -> None:
        """Someone adds an adapter before ours."""
        self.theirs.insert(0, THEIRS | {"uri": f"hf://others/{len(self.theirs)}"})
        self.edit({"model": {"lora": {"adapters": [self.theirs[0], *self.adapters()]}}})

    def remove_theirs(self) -> None:
        """Someone removes one that they added."""
        if self.theirs:
            gone = self.theirs.pop(0)
            self.edit({"model": {"lora": {"adapters": [one for one in self.adapters() if one != gone]}}})

    def apply_theirs(self) -> None:
        """Someone applies a manifest whose list has theirs alone."""
        self.edit({"model": {"lora": {"adapters": list(self.theirs)}}})

    def recreate(self) -> None:
        """Someone deletes the service, and creates it again after the publisher has looked."""
        self.delete()
        self.theirs = []
        self.step()
        self.create()

    def conflict(self) -> None:
        """The next write comes after another one that the publisher has not seen."""
        self.conflicts = 1

    def answering(self, name: str = "qwen") -> set[str]:
        """Our models that ready pods have."""
        return {one for one in self.ours(name) for pod in self.pods[name] if _ready(pod) and f'"{one}"' in str(pod)}


def _ready(pod: Raw) -> bool:
    return bool(pod["status"]["conditions"][0]["status"] == "True")
