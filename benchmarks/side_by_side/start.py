"""The parts of a start as a cluster's user sees it: from `kubectl apply` to the first token. Nothing here does I/O."""

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
"""The stages before the driver's own start -> what is seen at their end."""
FIRST_TOKEN = "first generation/first token"


def note(seen: Times, now: float, rayjobs: Iterable[Object], pods: Iterable[Object]) -> None:
    """Add to `seen` what these objects show for the first time, with its Unix time. The pods are of one attempt."""
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
    """Return head or worker."""
    return str(pod["metadata"].get("labels", {}).get("lorarl.io/role", ""))


def _container(pod: Object) -> Object | None:
    """Return Ray's container of a pod if it runs."""
    states = pod.get("status", {}).get("containerStatuses", [])
    return next(
        (one for one in states if one["name"] == f"ray-{role(pod)}" and "running" in one.get("state", {})), None
    )


def stages(applied: float, seen: Mapping[str, float], startup: Object) -> dict[str, float]:
    """Return the seconds of each part from `applied` to the first token, in order.

    Args:
        applied: Unix time at which `kubectl apply`, or the command, started.
        seen: what `note` saw; empty for a run without a cluster.
        startup: that of run_summary.json.
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
    """Return the seconds of each part that the first token had to wait for, from the driver's start."""
    began = startup["began"]
    parts = [
        Span(part["name"], part["who"], began + part["begin"], began + part["begin"] + part["seconds"])
        for part in startup["parts"]
    ]
    token = began + startup["first_token_seconds"]
    # Only the time before the token counts of the first generation.
    flat = [
        replace(part, name="first token") if part.name == FIRST_TOKEN else part
        for part in parts
        if part.name != "first generation"
    ]
    return by_name(critical_path(flat, token))


def within(startup: Object, name: str) -> dict[str, float]:
    """Return the seconds of the parts of a part."""
    prefix = f"{name}/"
    return {
        part["name"].removeprefix(prefix): part["seconds"]
        for part in startup["parts"]
        if part["name"].startswith(prefix)
    }


def overhead(bare: Iterable[Object], pods: Iterable[Object]) -> float:
    """Return the seconds of a step in pods over those of the same step bare, from their means."""
    means = []
    for steps in (bare, pods):
        seconds = [step["seconds"] for step in steps]
        means.append(sum(seconds) / len(seconds))
    return means[1] / means[0]


def lines_ended(lines: Iterable[tuple[float, str]], ended: float) -> dict[str, float]:
    """Return the seconds of a command's end from the times of its lines.

    The parts go from its last step to its last checkpoint, to its report, and to its exit.
    """
    marks: Times = {}
    for at, line in lines:
        if line.startswith("step "):
            marks["step"] = at
        elif line.startswith("checkpoint of step "):
            marks["checkpoint"] = at
        elif line.startswith(("succeeded after", "interrupted after", "failed after")):
            marks["told"] = at
    told = marks.get("told", ended)
    published = marks.get("checkpoint", told)
    return {
        "last checkpoint": published - marks.get("step", published),
        "workers and Ray": told - published,
        "report and exit": ended - told,
    }
