"""Runs `lorarl run` on this machine, and takes the times of its start and its end."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lorarl_trainer.progress import read_summary
from side_by_side import ours
from side_by_side.start import lines_ended, stages
from side_by_side.work import Work

CACHES = {"VLLM_CACHE_ROOT": "vllm", "TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
"""Compiled code goes into these folders, as in pods."""


def run(folder: Path, job: Mapping[str, Any], work: Work, caches: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Run a manifest to its end; return its steps, its startup, and the stages of start and end.

    Raises:
        subprocess.SubprocessError: it failed. Its output is in `folder`/output.log.
    """
    environment = {**os.environ, **{name: str(caches / part) for name, part in CACHES.items()}}
    command = ours.command(folder, job, overrides)
    lines: list[tuple[float, str]] = []
    began = time.time()
    with (folder / "output.log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            lines.append((time.time(), line))
            log.write(line)
            log.flush()
        code = process.wait()
    if code:
        raise subprocess.CalledProcessError(code, command)
    startup = read_summary(folder / "run")["startup"]
    return {
        "steps": ours.steps_of(folder, ours.work_of(folder, work)),
        "startup": startup,
        "stages": stages(began, {}, startup),
        "end": lines_ended(lines, time.time()),
    }
