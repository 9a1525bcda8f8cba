"""`lorarl validate`: all faults of all files, one per line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lorarl_api.faults import ManifestError
from lorarl_api.load import documents, faults


def validate_files(paths: Sequence[str | Path]) -> int:
    """Print `FILE: path: got ..., expected ... Hint.` for each fault, and `FILE: ok` for a file without faults.

    Returns:
        The command's exit code: 0 if all files are valid, otherwise 1.
    """
    lines = {str(path): _faults_of(Path(path)) for path in paths}
    for path, found in lines.items():
        for line in found or ["ok"]:
            print(f"{path}: {line}")
    return int(any(lines.values()))


def _faults_of(path: Path) -> list[str]:
    try:
        jobs = documents(path)
    except ManifestError as error:
        return [str(fault).removeprefix(f"{path}: ").removeprefix(f"{path}, ") for fault in error.faults]
    several = len(jobs) > 1
    return [
        f"job {number}: {fault}" if several else str(fault)
        for number, job in enumerate(jobs, start=1)
        for fault in faults(job)
    ]
