"""A manifest of another of lorarl's kinds where a command takes a job: what to do with it instead."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lorarl_api.faults import Fault
from lorarl_api.v1alpha1 import CLUSTER_TEMPLATE_KIND, KIND, SCHEDULE_KIND, SWEEP_KIND, TEMPLATE_KIND


def other_kind(documents: Sequence[Any], source: str | Path) -> Fault | None:
    """The fault of the first document of another of lorarl's kinds; None if none is. `source`: as `load_job` takes."""
    file = source if isinstance(source, Path) else Path("FILE.yaml")
    kinds = [document.get("kind") for document in documents if isinstance(document, dict)]
    kind = next((kind for kind in kinds if isinstance(kind, str) and kind in _HINTS), None)
    return Fault("kind", kind, KIND, _HINTS[kind](file)) if kind else None


def _of_schedule(file: Path) -> str:
    job = file.with_name(f"{file.stem}-job.yaml")
    return f"Write its next job with `lorarl render {_quoted(file)} > {_quoted(job)}`, and name {job} here."


def _of_sweep(file: Path) -> str:
    return (
        f"Start it in a cluster with `kubectl apply -f {_quoted(file)}`. On one machine, "
        "`lorarl sweep JOB.yaml --over PATH=VALUES` trains such trials of a job's manifest."
    )


def _of_template(file: Path) -> str:
    return f"Name a job's manifest here. `lorarl render JOB.yaml --template {_quoted(file)}` completes one with it."


def _quoted(file: Path) -> str:
    return shlex.quote(str(file))


_HINTS: dict[str, Callable[[Path], str]] = {
    SCHEDULE_KIND: _of_schedule,
    SWEEP_KIND: _of_sweep,
    TEMPLATE_KIND: _of_template,
    CLUSTER_TEMPLATE_KIND: _of_template,
}
