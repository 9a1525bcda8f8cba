"""`lorarl run`: from a manifest to a trained adapter. Open a session, train, and end in order, however the run ends."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lorarl_api.faults import ManifestError
from lorarl_trainer.errors import FencedError, InputError, LorarlError, NodeLostError, in_one_line
from lorarl_trainer.launch.build import Launch, OpenRun, open_run
from lorarl_trainer.launch.local import only_run_in
from lorarl_trainer.launch.replay import Rehearsal
from lorarl_trainer.launch.resumption import changes_since_last_start, finished_adapter, what_next
from lorarl_trainer.launch.runtime import report_invalid_input
from lorarl_trainer.launch.signals import Interruption
from lorarl_trainer.loop import train
from lorarl_trainer.progress import (
    METRICS,
    SUMMARY,
    MoreWorkers,
    Progress,
    RunFinished,
    Warned,
    WorkersLost,
    fallen_lines,
    final_message,
    no_gain_line,
    open_progress,
    read_rows,
    read_summary,
    report_line,
    write_report,
)
from lorarl_trainer.session import RESCUE_SECONDS, Session

EXIT_FAILED = 1
EXIT_INTERRUPTED = 75
"""EX_TEMPFAIL of sysexits.h: the same command resumes from the newest checkpoint, if a step was made."""
EXIT_ABORTED = 130
"""What a shell reports for a program that Ctrl-C ended."""
INTERRUPTED = "Interrupted"
"""The reason of a run that was asked to end. Other reasons are those of the errors."""
_NOTHING_LEFT = (
    "job {name} is finished: all {step} steps are done{changed}. To continue, raise spec.trainer.steps; to train "
    "again, use another metadata.name."
)
_MORE = "there are machines for more workers: all start again and continue from the checkpoint just published"
_RECOVERY_RESCUE_SECONDS = 5.0
"""How long checkpoints that are still uploading may delay new workers, which otherwise repeat their steps."""


def run_manifest(
    path: Path,
    out_dir: Path | None,
    overrides: list[str],
    in_cluster: bool = False,
    rehearsal: Rehearsal | None = None,
) -> int:
    """Train the job of a manifest, on this machine or as the driver in a cluster's pods; return the exit code."""
    rehearsal = rehearsal or Rehearsal()
    try:
        launch = Launch.of_manifest(path, out_dir, overrides, rehearsal, in_cluster=in_cluster)
    except (LorarlError, ManifestError) as error:
        if in_cluster:
            report_invalid_input(path, str(error))
        print(f"lorarl: {error}", file=sys.stderr)
        return EXIT_FAILED
    try:
        with contextlib.nullcontext() if in_cluster else only_run_in(launch.out_dir):
            here = not in_cluster and rehearsal == Rehearsal()
            if here and (adapter := _finished(launch)):
                return _say_finished(launch, adapter)
            return asyncio.run(_run(launch))
    except LorarlError as error:
        print(f"lorarl: {error}", file=sys.stderr)
        return EXIT_FAILED


def _finished(launch: Launch) -> str | None:
    """Return the adapter of a training that is over. Where the store has its record, a start brings lost files back."""
    return finished_adapter(
        launch.job, launch.secrets, launch.out_dir, launch.unpublished, without_files=launch.record is None
    )


def _say_finished(launch: Launch, adapter: str) -> int:
    job, out_dir = launch.job, launch.out_dir
    changes = changes_since_last_start(out_dir, job)
    changed = f", and the changed fields need no further training: {', '.join(changes)}" if changes else ""
    print(_NOTHING_LEFT.format(name=job.name, step=job.spec.trainer.steps, changed=changed or ", with this manifest"))
    if (out_dir / SUMMARY).exists():
        print(report_line(out_dir, here=True), final_message(read_summary(out_dir), out_dir), sep="\n")
    else:
        print(f"{out_dir} has none of its files: they were moved or removed, or it ran with another --out.")
        print(f"Adapter   {adapter}")
    return 0


@dataclass
class _Outcome:
    """How far a run came. Known also when it fails.

    Attributes:
        trained: whether training began. Before that, out_dir may hold the files of an earlier run.
        done: whether every step was made.
        aborted: whether the run must end at once.
    """

    step: int = 0
    adapter_uri: str | None = None
    trained: bool = False
    done: bool = False
    aborted: bool = False


async def _run(launch: Launch) -> int:
    began, outcome, runtime, out_dir = time.perf_counter(), _Outcome(), launch.runtime, launch.out_dir
    sinks = (
        *runtime.sinks,
        *([launch.record] if launch.record else []),
        *([launch.watchdog] if launch.watchdog else []),
    )
    with (
        _report_after(launch, outcome),
        open_progress(out_dir, launch.job.spec.tracking, launch.secrets, sinks, uid=launch.job.uid) as progress,
        Interruption(progress) as interruption,
    ):
        if launch.record:
            launch.record.start(progress.emit)
        if launch.watchdog:
            launch.watchdog.start(launch.record.publish_soon if launch.record else lambda: None)

        def finish(
            state: Literal["succeeded", "interrupted", "failed"], message: str = "", reason: str = "", then: str = ""
        ) -> None:
            seconds = time.perf_counter() - began
            if outcome.trained and (rows := read_rows(out_dir / METRICS)):
                outcome.step = rows[-1]["step"]  # known also when the loop ended with an error
            progress.emit(
                RunFinished(
                    state=state,
                    step=outcome.step,
                    adapter_uri=outcome.adapter_uri,
                    total_seconds=seconds,
                    message=message,
                    reason=reason,
                    what_next=then,
                )
            )

        for warning in runtime.warnings:
            progress.emit(Warned(warning))
        try:
            await _train(launch, progress, interruption, outcome)
        except asyncio.CancelledError:
            outcome.aborted = interruption.twice
            finish("interrupted", f"stopped at once; {_after_interruption(launch, outcome)}", INTERRUPTED)
            return EXIT_ABORTED if interruption.twice else EXIT_INTERRUPTED
        except LorarlError as error:
            finish("failed", str(error), error.reason, _after_failure(launch, outcome, error))
            raise
        except Exception as error:
            finish("failed", in_one_line(error), "InternalError", _after_failure(launch, outcome, error))
            raise
        if outcome.done:
            finish("succeeded")
        else:
            finish("interrupted", _after_interruption(launch, outcome), INTERRUPTED)
    _print_last_lines(launch, outcome.done)
    return 0 if outcome.done else EXIT_INTERRUPTED


def _print_last_lines(launch: Launch, done: bool) -> None:
    """Print how the adapter is used, and after the last step also if it is no better than the base model."""
    out_dir, spec = launch.out_dir, launch.job.spec
    rows = read_rows(out_dir / METRICS) if done else []
    if done and (line := no_gain_line(rows, spec.algorithm.type, spec.adapter.init_from)):
        print(line)
    for line in fallen_lines(rows):
        print(line)
    print(final_message(read_summary(out_dir), None if launch.runtime.in_pods else out_dir))


async def _train(launch: Launch, progress: Progress, interruption: Interruption, outcome: _Outcome) -> None:
    """Set up, train, and wait for the uploads; leave nothing running. In a cluster, lost workers are replaced."""
    async with open_run(launch, progress, interruption) as run:
        session = await run.session()
        while (why := await _train_until_change(launch, session, interruption, outcome)) is not None:
            interruption.finishes = lambda: None
            session = await _with_new_workers(run, progress, session, why)


async def _train_until_change(
    launch: Launch, session: Session, interruption: Interruption, outcome: _Outcome
) -> WorkersLost | MoreWorkers | None:
    """Train; return None at the end of the run, and otherwise why the workers must be replaced."""
    checkpoints = session.checkpoints
    outcome.step, outcome.adapter_uri, outcome.trained = checkpoints.step, checkpoints.adapter_uri, True
    interruption.finishes = lambda: session.finishes
    try:
        try:
            outcome.step = await train(session, checkpoints.step)
        finally:
            await session.stop_ahead()
        await checkpoints.drain()
        outcome.done = outcome.step >= session.total_steps
        if outcome.done:
            await checkpoints.finish()
        if outcome.done or interruption.asked.is_set():
            return None
        if session.leaving:
            return _lost("a worker's pod is about to be removed")
        return MoreWorkers(_MORE) if session.growing else None
    except Exception as failure:
        replaced = launch.runtime.in_pods and isinstance(failure, NodeLostError) and not interruption.asked.is_set()
        await checkpoints.rescue(failure, _RECOVERY_RESCUE_SECONDS if replaced else RESCUE_SECONDS)
        if not replaced:
            raise
        return _lost(str(failure))
    finally:
        outcome.adapter_uri = checkpoints.adapter_uri


def _lost(why: str) -> WorkersLost:
    return WorkersLost(f"{why}; waiting for new workers, which continue from the newest checkpoint")


async def _with_new_workers(
    run: OpenRun, progress: Progress, before: Session, why: WorkersLost | MoreWorkers
) -> Session:
    """Return a session of new workers after the one before.

    The operator limits how long that may take, and how often they may be lost.
    """
    while True:
        progress.emit(why)
        try:
            return await run.session_of_new_workers(before, lost=isinstance(why, WorkersLost))
        except NodeLostError as error:
            # To the operator a machine that was to be added is no loss: it is none of those that have trained.
            grows = isinstance(why, MoreWorkers)
            why = MoreWorkers(f"{error}; starting on the machines that are left") if grows else _lost(str(error))


def _after_interruption(launch: Launch, outcome: _Outcome) -> str:
    """Return what the same command will do; in a pod, where the operator decides that, what it will find."""
    if not launch.runtime.in_pods:
        return what_next(launch.job, launch.secrets, launch.unpublished)
    if outcome.adapter_uri:
        found = f"its newest checkpoint is {outcome.adapter_uri.removesuffix('/lora_adapter')}"
    else:
        found = "no checkpoint is published yet" if outcome.trained else "checkpoints that are published stay"
    return f"it was asked to end; {found}"


def _after_failure(launch: Launch, outcome: _Outcome, error: Exception) -> str:
    """Return what the same command will do; nothing where it would fail again, or where the operator decides."""
    if (
        launch.runtime.in_pods
        or isinstance(error, FencedError)
        or (isinstance(error, InputError) and not outcome.trained)
    ):
        return ""
    return what_next(launch.job, launch.secrets, launch.unpublished)


@contextlib.contextmanager
def _report_after(launch: Launch, outcome: _Outcome) -> Iterator[None]:
    """Write the report of a run that trained, and complete its record, however it ended."""
    try:
        yield
    finally:
        if outcome.trained and not outcome.aborted:
            try:
                write_report(launch.out_dir)
                print(report_line(launch.out_dir, here=not launch.runtime.in_pods))
            except Exception as error:  # noqa: BLE001 - a failed picture must not fail the training
                print(f"warning: report.html could not be written: {type(error).__name__}: {error}")
        if launch.record and not outcome.aborted and (incomplete := launch.record.finish()):
            print(f"warning: {incomplete}")
