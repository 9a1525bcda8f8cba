"""`lorarl validate`: all faults of all files, one per line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from lorarl_api.faults import ManifestError
from lorarl_api.load import assign, documents, faults, job_of
from lorarl_api.pod_overrides import override_faults
from lorarl_api.v1alpha1 import LoRARLJob

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
        jobs = documents(path)
        for document in jobs:
            assign(document, overrides)
    except ManifestError as error:
        return [str(fault).removeprefix(f"{path}: ").removeprefix(f"{path}, ") for fault in error.faults], []
    found, notes = [], []
    for number, document in enumerate(jobs, start=1):
        which = f"job {number}: " if len(jobs) > 1 else ""
        told = [str(fault) for fault in faults(document)]
        if not told:
            job = job_of(document)
            told = [str(fault) for fault in override_faults(job)]
        if not told and look is not None:
            fault, note = look(job)
            told = [fault] if fault else []
            notes += [f"{which}{note}"] if note else []
        found += [f"{which}{line}" for line in told]
    return found, notes
