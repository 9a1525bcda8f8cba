"""A start as a user of a cluster lives through it: from `kubectl apply` over Kubernetes' and Ray's part to the first token. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from lorarl_trainer.timing import Span, by_name, critical_path

type Object = Mapping[str, Any]
type Times = dict[str, float]

STAGES = {
    "operator": "RayJob",
    "KubeRay": "pods",
    "scheduling": "scheduled",
    "containers": "containers",
    "Ray up, job submitted": "driver",
}
"""What comes before the driver's own start: the stage, and what was seen at its end."""
FIRST_TOKEN = "first generation/first token"


def note(seen: Times, now: float, rayjobs: Iterable[Object], pods: Iterable[Object]) -> None:
    """Add to `seen` when what these objects show was seen first, Unix time. The pods are head and workers of one attempt."""
    pods = list(pods)
    ray = [pod for pod in pods if _container(pod) is not None]
    so = {
        "RayJob": any(True for _ in rayjobs),
        "pods": {"head", "worker"} <= {role(pod) for pod in pods},
        "scheduled": {"head", "worker"} <= {role(pod) for pod in pods if pod.get("spec", {}).get("nodeName")},
        "containers": {"head", "worker"} <= {role(pod) for pod in ray},
    }
    for what, is_so in so.items():
        if is_so:
            seen.setdefault(what, now)


def role(pod: Object) -> str:
    """head or worker."""
    return str(pod["metadata"].get("labels", {}).get("lorarl.io/role", ""))


def _container(pod: Object) -> Object | None:
    """Ray's container of a pod, where it runs."""
    states = pod.get("status", {}).get("containerStatuses", [])
    return next(
        (one for one in states if one["name"] == f"ray-{role(pod)}" and "running" in one.get("state", {})), None
    )


def stages(applied: float, seen: Mapping[str, float], startup: Object) -> dict[str, float]:
    """Seconds of each part from `applied` (Unix time) to the first token, in order; they add up to `first_token_seconds`.

    Args:
        applied: When `kubectl apply`, or the command, was begun.
        seen: What `note` saw; empty for a run without a cluster.
        startup: Of run_summary.json.
    """
    found, reached = {}, applied
    for stage, mark in STAGES.items():
        at = startup["began"] if mark == "driver" else seen.get(mark)
        if at is not None:
            found[stage] = max(0.0, at - reached)
            reached = max(reached, at)
    if not seen:
        found = {"command": max(0.0, startup["began"] - applied)}
    return found | waited_for(startup)


def waited_for(startup: Object) -> dict[str, float]:
    """Seconds of each part that the first token had to wait for, from the driver's begin."""
    began = startup["began"]
    parts = [
        Span(part["name"], part["who"], began + part["begin"], began + part["begin"] + part["seconds"])
        for part in startup["parts"]
    ]
    token = began + startup["first_token_seconds"]
    # Of the first generation only what comes before the token counts.
    flat = [
        replace(part, name="first token") if part.name == FIRST_TOKEN else part
        for part in parts
        if part.name != "first generation"
    ]
    return by_name(critical_path(flat, token))


def within(startup: Object, name: str) -> dict[str, float]:
    """Seconds of the parts of a part."""
    prefix = f"{name}/"
    return {
        part["name"].removeprefix(prefix): part["seconds"]
        for part in startup["parts"]
        if part["name"].startswith(prefix)
    }


def overhead(bare: Iterable[Object], pods: Iterable[Object]) -> float:
    """A step in pods over the same step bare, from the means of their seconds."""
    means = []
    for steps in (bare, pods):
        seconds = [step["seconds"] for step in steps]
        means.append(sum(seconds) / len(seconds))
    return means[1] / means[0]


def lines_ended(lines: Iterable[tuple[float, str]], ended: float) -> dict[str, float]:
    """Seconds of a command's end, by when its lines came: from its last step to its last checkpoint, to how it ended, to its exit."""
    marks: Times = {}
    for at, line in lines:
        if line.startswith("step "):
            marks["checkpoint" if "  checkpoint " in line else "step"] = at
        elif line.startswith(("succeeded after", "interrupted after", "failed after")):
            marks["told"] = at
    told = marks.get("told", ended)
    published = marks.get("checkpoint", told)
    return {
        "last checkpoint": published - marks.get("step", published),
        "workers and Ray": told - published,
        "report and exit": ended - told,
    }
