"""`lorarl validate`: all faults of all files, one per line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lorarl_api.faults import Fault, ManifestError
from lorarl_api.load import assign, documents, faults, job_of
from lorarl_api.pod_overrides import override_faults
from lorarl_api.pod_paths import relative_path_faults
from lorarl_api.schedules.manifest import job_document as scheduled_job
from lorarl_api.schedules.manifest import schedule_faults
from lorarl_api.sweeps.manifest import job_document, sweep_faults, trials_of
from lorarl_api.v1alpha1 import KIND, SCHEDULE_KIND, SWEEP_KIND, LoRARLJob, LoRARLSweep

_WORDS = {KIND: "job", SWEEP_KIND: "sweep", SCHEDULE_KIND: "schedule"}
_FAULTS: dict[str, Callable[[Any], list[Fault]]] = {
    KIND: faults,
    SWEEP_KIND: sweep_faults,
    SCHEDULE_KIND: schedule_faults,
}
Look = Callable[[LoRARLJob], tuple[str | None, str | None]]
"""Looks at what a manifest without faults names; returns a fault of that, or what else is worth saying."""


def validate_files(paths: Sequence[str | Path], look: Look | None = None, overrides: Sequence[str] = ()) -> int:
    """Print `FILE: path: got ..., expected ... Hint.` for each fault, and `FILE: ok` for a file without faults.

    `overrides`: assignments such as `spec.trainer.steps=5`, applied to each job first.

    Returns:
        The command's exit code: 0 if all files are valid, otherwise 1.
    """
    failed = False
    for path in paths:
        found, notes = _looked_at(Path(path), look, overrides)
        failed = failed or bool(found)
        for line in found or ["; ".join(["ok", *notes])]:
            print(f"{path}: {line}")
    return int(failed)


def _looked_at(path: Path, look: Look | None, overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the faults of a file, and what else is worth saying."""
    try:
        there = documents(path, tuple(_WORDS))
        for document in there:
            assign(document, overrides)
    except ManifestError as error:
        return [str(fault).removeprefix(f"{path}: ").removeprefix(f"{path}, ") for fault in error.faults], []
    found, notes = [], []
    for number, document in enumerate(there, start=1):
        kind = _kind(document)
        which = f"{_WORDS[kind]} {number}: " if len(there) > 1 else ""
        told = [str(fault) for fault in _FAULTS[kind](document)]
        if not told:
            jobs = _jobs_of(document)
            told = list(dict.fromkeys(str(fault) for job in jobs for fault in _faults_in_pods(job)))
            seen = [look(job) for job in jobs] if look is not None and not told else []
            told += list(dict.fromkeys(fault for fault, _ in seen if fault))
            if not told:
                notes += [f"{which}{note}" for note in dict.fromkeys(note for _, note in seen if note)]
        found += [f"{which}{line}" for line in told]
    return found, notes


def _faults_in_pods(job: LoRARLJob) -> list[Fault]:
    """Return what would fail in the job's pods. A volume is looked for only in overrides that Kubernetes takes."""
    return override_faults(job) or list(relative_path_faults(job))


def _kind(document: Any) -> str:
    kind = document.get("kind") if isinstance(document, dict) else None
    return kind if isinstance(kind, str) and kind in _WORDS else KIND


def _jobs_of(document: dict[str, Any]) -> list[LoRARLJob]:
    """The jobs of a document without faults: itself, those of a sweep's trials, or the first one of a schedule."""
    if _kind(document) == KIND:
        return [job_of(document)]
    if _kind(document) == SCHEDULE_KIND:
        return [job_of(scheduled_job(document["spec"]["template"]["spec"], document["metadata"]["name"], None))]
    sweep = LoRARLSweep.model_validate(document, by_alias=True, by_name=False)
    trials = trials_of(sweep.metadata.name, sweep.spec)
    return [job_of(job_document(sweep.spec.template.spec, trial)) for trial in trials]
