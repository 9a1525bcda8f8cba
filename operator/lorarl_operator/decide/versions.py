"""The versions of an adapter that may be published, and the gate before them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from lorarl_api.v1alpha1 import PublishedStatus, PublishedVersion, PublishSpec
from lorarl_operator.decide.publish_reasons import Publishing
from lorarl_operator.decide.status import SUCCEEDED

_DIGITS = 8


@dataclass(frozen=True, slots=True)
class Held:
    """Why a checkpoint is not to be served, with the step that it is about; None without one."""

    reason: Publishing
    message: str
    step: int | None = None


def best_version(entry: PublishSpec, phase: str, best: Mapping[str, Any]) -> PublishedVersion | Held:
    """The version that passes the gate's limit, or why there is none.

    `best`: `status.best` of the job; empty without one.
    """
    if entry.when == "End" and phase != SUCCEEDED:
        return Held(Publishing.TRAINING_RUNS, "The best checkpoint is published when the training has succeeded.")
    if not best:
        return Held(Publishing.NO_RESULT, "No checkpoint has been chosen by checkpoint.keepBest yet.")
    step, metric, value = best["step"], best["metric"], best["value"]
    if entry.minimum is not None and not value >= entry.minimum:
        return Held(Publishing.BELOW_GATE, f"Step {step} is held back: {metric} {value:g} < {entry.minimum:g}.", step)
    if entry.maximum is not None and not value <= entry.maximum:
        return Held(Publishing.BELOW_GATE, f"Step {step} is held back: {metric} {value:g} > {entry.maximum:g}.", step)
    if not best.get("sha256"):
        return Held(Publishing.NO_DIGEST, f"Step {step} is held back: the training reports no digest of it.", step)
    return PublishedVersion(
        model=model_name(entry.name, step, best["sha256"]),
        step=step,
        uri=best["uri"],
        sha256=best["sha256"],
        metric=metric,
        value=value,
    )


def model_name(name: str, step: int, sha256: str) -> str:
    """Name of a version. It has the beginning of the digest, so that it never means two contents."""
    return f"{name}-{step}-{sha256[:_DIGITS]}"


def not_better(entry: PublishSpec, found: PublishedVersion, reached: PublishedVersion | None) -> Held | None:
    """Why a version does not take the place of one that was accepted; None if it does.

    Values of two metrics cannot be compared, so then the newer version counts as better.
    """
    if reached is None or reached.metric != found.metric:
        return None
    better = found.value < reached.value if entry.maximum is not None else found.value > reached.value
    if better:
        return None
    text = f"Step {found.step} is held back: {found.metric} {found.value:g} is not better than {reached.value:g}"
    return Held(Publishing.NOT_BETTER, f"{text} of {reached.model}.", found.step)


def stored_entries(status: Mapping[str, Any]) -> dict[str, PublishedStatus]:
    """`status.published` by name, without what another CRD or a manual edit may have left there."""
    found = {}
    for raw in status.get("published") or ():
        try:
            entry = PublishedStatus.model_validate(raw, extra="ignore")
        except ValidationError:
            continue
        found[entry.name] = entry
    return found
