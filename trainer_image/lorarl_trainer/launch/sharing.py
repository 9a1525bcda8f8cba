"""Which trials of a sweep may share workers: those that a worker runs by the same execution plan."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lorarl_api.v1alpha1 import LoRARLJob, LoRARLJobSpec
from lorarl_trainer.errors import InputError
from lorarl_trainer.launch.shared_workers import SharedWorkers
from lorarl_trainer.launch.sweep import Trial, shares
from lorarl_trainer.launch.trials import Group

_OF_A_TRIAL = (
    *("spec.algorithm", "spec.reward", "spec.rewards", "spec.data", "spec.checkpoint", "spec.tracking"),
    *("spec.trainer.steps", "spec.trainer.learningRate", "spec.trainer.warmupSteps", "spec.trainer.seed"),
    *("spec.trainer.learningRateSchedule", "spec.trainer.minLearningRateShare", "spec.trainer.weightDecay"),
    *("spec.trainer.beta1", "spec.trainer.beta2", "spec.trainer.epsilon", "spec.trainer.maxGradNorm"),
)
"""Fields that may differ: the driver's own, and numbers of each update. What `_derived` makes of them may not."""


def groups_of(
    manifest: Path, trials: Sequence[Trial], jobs: Sequence[LoRARLJob], folder: Path, at_once: int, *, share: bool
) -> tuple[list[Group], list[str]]:
    """Return the groups in which the trials of a sweep are made, and lines that say what shares no workers, and why.

    Raises:
        InputError: `share`, and workers are elsewhere; or there are too few GPUs for those that share nothing.
    """
    if not share:
        return [Group(trials, shares(jobs, at_once))], []
    require_own_ray()
    alike, lines = classes(jobs)
    groups = []
    for number, places in enumerate(alike, 1):
        chosen = [trials[place] for place in places]
        seats = min(at_once, len(chosen))
        workers = SharedWorkers(manifest, chosen[0].overrides, folder / f"shared-{number}", seats)
        groups.append(Group(chosen, [workers.environment] * seats, workers))
    sharing = {place for places in alike for place in places}
    if alone := [place for place in range(len(trials)) if place not in sharing]:
        own = shares([jobs[place] for place in alone], at_once)
        groups.append(Group([trials[place] for place in alone], own))
    return groups, lines


def classes(jobs: Sequence[LoRARLJob]) -> tuple[list[list[int]], list[str]]:
    """Return the jobs that share workers, and a line for each reason why others do not.

    Returns:
        Places of jobs, class by class, each with two at least; and lines that name a field and the jobs.
    """
    found: list[list[int]] = []
    reasons: dict[str, list[str]] = {}
    for place, job in enumerate(jobs):
        if why := refusal(job.spec):
            reasons.setdefault(why, []).append(job.name)
            continue
        alike = next((one for one in found if difference(jobs[one[0]].spec, job.spec) is None), None)
        if alike is None:
            found.append(alike := [])
        alike.append(place)
    for alone in (one for one in found if len(one) == 1 and len(jobs) > 1):
        job = jobs[alone[0]]
        others = (difference(jobs[one[0]].spec, job.spec) for one in found if one is not alone)
        why = f"{next(filter(None, others), 'no other trial')} is that of no other trial"
        reasons.setdefault(why, []).append(job.name)
    lines = [f"{why}, so without sharing: {', '.join(names)}" for why, names in reasons.items()]
    return [one for one in found if len(one) > 1], lines


def difference(one: LoRARLJobSpec, other: LoRARLJobSpec) -> str | None:
    """Return a field in which two jobs differ and that decides how a worker runs them; None if there is none."""
    left, right = ({**dict(_leaves("spec", _dumped(spec))), **_derived(spec)} for spec in (one, other))
    differing = (path for path in (*left, *right) if left.get(path) != right.get(path))
    return next(differing, None)


def refusal(spec: LoRARLJobSpec) -> str | None:
    """Return why a job shares no worker with any other one; it begins with the field. None if it may."""
    if spec.world_size > 1:
        field = "spec.cluster.gpusPerNode" if spec.on_gpu else "spec.trainer"
        return f"{field} asks for {spec.world_size} workers"
    if spec.servers:
        return "spec.rollout.servers generate"
    if spec.separate_engines:
        return "spec.rollout.separateEngines generate"
    return None


def require_own_ray() -> None:
    """Require that workers are started on this machine.

    Raises:
        InputError: RAY_ADDRESS names a Ray that runs elsewhere.
    """
    if "RAY_ADDRESS" in os.environ:
        hint = "Unset RAY_ADDRESS, or leave out --share."
        raise InputError("RAY_ADDRESS", os.environ["RAY_ADDRESS"], "none: trials share workers of this machine", hint)


def _derived(spec: LoRARLJobSpec) -> dict[str, Any]:
    """Return what a worker's plan depends on of fields that may differ otherwise, by the field to name."""
    about = spec.algorithm.about
    return {
        "spec.algorithm.groupSize": spec.algorithm.effective_group_size,
        "spec.algorithm.type": (about.learns_from, spec.generates, about.critic),
        "spec.algorithm.kl.reference": spec.reference == "base",
        "spec.algorithm.distillation.adapter": spec.algorithm.teacher_adapter is None,
    }


def _dumped(spec: LoRARLJobSpec) -> dict[str, Any]:
    return spec.model_dump(by_alias=True, mode="json")


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if path in _OF_A_TRIAL:
        return
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(f"{path}.{name}", inner)
    else:
        yield path, value
