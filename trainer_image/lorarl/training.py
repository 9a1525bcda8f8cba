"""`lorarl.train`: what `lorarl run` does, from Python."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lorarl.job import Asked, JobLike, RewardLike, Rows, asked
from lorarl.process import Command
from lorarl.run import OUTPUT, Run
from lorarl_trainer.errors import LorarlError
from lorarl_trainer.install.locks import NOT_INSTALLED, installed_flavour


def train(
    job: JobLike,
    *,
    reward: RewardLike | None = None,
    data: Rows | None = None,
    held_out: Rows | None = None,
    overrides: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    wait: bool = True,
) -> Run:
    """Train a job on this machine with `lorarl run`; the same call resumes it.

    Ctrl-C, or the stop button of a notebook, publishes a checkpoint first. A second one stops the run at once. When
    this process ends, its run publishes a checkpoint too, and ends.

    Args:
        job: the path of a manifest, its text in YAML, the manifest as a dict, or a checked job.
        reward: in place of the manifest's: a function, several that add up, a dict as in the manifest, or a text: a
            type of reward, or package.module:function. A function of a notebook is written to a file beside the run.
        data: training rows in place of the manifest's.
        held_out: rows of `data.eval`.
        overrides: other fields, as of `--set`: {"spec.trainer.steps": 20}.
        out: the run's folder; None for out/NAME.
        wait: whether to return when the run has ended. Otherwise `Run.wait` waits.

    Raises:
        ManifestError: the manifest has faults. The error has all of them.
        LorarlError: something that it names cannot be used, or the run failed.
        KeyboardInterrupt: someone pressed Ctrl-C, and the run has ended because of that.
    """
    called = asked(job, reward=reward, data=data, held_out=held_out, overrides=overrides, out=out)
    if installed_flavour() is None:
        raise LorarlError(NOT_INSTALLED)
    from lorarl_trainer.launch.runtime import local_runtime  # not at the top: it imports the trainer

    local_runtime(called.job, called.out)
    run = Run(called.out, _started(called))
    return run.wait() if wait else run


def _started(called: Asked) -> Command:
    from lorarl_trainer.launch.local import only_run_in

    with only_run_in(called.out):  # the rows of a run that trains must not change
        for path, text in called.files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    overrides = [part for each in called.overrides for part in ("--set", each)]
    output = called.out / OUTPUT
    output.parent.mkdir(parents=True, exist_ok=True)
    return Command(["run", str(called.manifest), "--out", str(called.out), *overrides], output)
