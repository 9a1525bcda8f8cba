"""`lorarl run`: from a manifest to a trained adapter. Sets the parts up, hands them to the loop, and ends in order.

What a user can have got wrong is looked for while Ray and the workers start, which takes most of the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

from lorarl_api.faults import ManifestError
from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.algorithms import get_algorithm
from lorarl_trainer.checkpoint.identity import training_identity
from lorarl_trainer.checkpoint.open import check_checkpoints
from lorarl_trainer.data.order import DataOrder
from lorarl_trainer.errors import LorarlError, in_one_line
from lorarl_trainer.launch import inputs
from lorarl_trainer.launch.ray_cluster import Machines
from lorarl_trainer.launch.runtime import Surroundings, in_pods, one_machine
from lorarl_trainer.launch.signals import Interruption
from lorarl_trainer.loop import train
from lorarl_trainer.pods.drain import drain_asked, in_a_pod
from lorarl_trainer.progress import (
    METRICS,
    AdapterSummary,
    Noted,
    Progress,
    RunFinished,
    RunStarted,
    Warned,
    final_message,
    open_progress,
    read_rows,
    read_summary,
    write_report,
)
from lorarl_trainer.rewards.scorer import make_scorer
from lorarl_trainer.session import Session
from lorarl_trainer.storage.base_model import base_model_name
from lorarl_trainer.storage.secrets import Secrets, read_secrets
from lorarl_trainer.threads import in_background
from lorarl_trainer.timing import StartClock
from lorarl_trainer.workers.group import WorkerGroup
from lorarl_trainer.workers.worker import Built, Resumed

EXIT_FAILED = 1
EXIT_INTERRUPTED = 75
"""EX_TEMPFAIL of sysexits.h: a checkpoint is published, and the same command goes on from it."""
INTERRUPTED = "Interrupted"
"""The reason of a run that was asked to end; the others are those of the errors."""
EXIT_ABORTED = 130
"""What a shell reports of a program that Ctrl-C ended."""


def run_manifest(path: Path, out_dir: Path | None, overrides: list[str], in_cluster: bool = False) -> int:
    """Train the job of a manifest, on this machine or as the driver in a cluster's pods; return the exit code."""
    clock = StartClock("driver", "process")
    try:
        job = load_job(path, overrides)
        out_dir = out_dir or Path("out") / job.name
        surroundings = in_pods(job, path) if in_cluster else one_machine(job, out_dir)
        return asyncio.run(_run(job, path.parent, out_dir, surroundings, clock))
    except (LorarlError, ManifestError) as error:
        print(f"lorarl: {error}", file=sys.stderr)
        return EXIT_FAILED


@dataclass
class _Outcome:
    """How far a run came, known also when it fails."""

    step: int = 0
    adapter_uri: str | None = None
    started: bool = False
    """Whether training began: before, out_dir may hold the files of an earlier run."""
    done: bool = False
    """Whether every step was made."""
    aborted: bool = False
    """Whether it has to end at once."""

    @property
    def how_to_go_on(self) -> str:
        """What the same command will do; in a pod, where the operator says that, what it will find."""
        newest = self.adapter_uri and self.adapter_uri.removesuffix("/lora_adapter")
        if in_a_pod():
            return f"it was asked to end; {f'its newest checkpoint is {newest}' if newest else 'no checkpoint is published yet'}"
        if newest:
            return f"the same command goes on from the newest checkpoint, {newest}"
        return "no checkpoint is published yet, and the same command starts anew"


async def _run(
    job: LoRARLJob, manifest_folder: Path, out_dir: Path, surroundings: Surroundings, clock: StartClock
) -> int:
    began, outcome = time.perf_counter(), _Outcome()
    secrets = read_secrets(job.spec)
    with (
        _report_after(out_dir, outcome),
        open_progress(out_dir, job.spec.tracking, secrets, surroundings.sinks) as progress,
        Interruption(progress) as interruption,
    ):

        def finish(state: Literal["succeeded", "interrupted", "failed"], message: str = "", reason: str = "") -> None:
            seconds = time.perf_counter() - began
            if outcome.started and (rows := read_rows(out_dir / METRICS)):
                outcome.step = rows[-1]["step"]  # also where the loop ended by an error
            progress.emit(
                RunFinished(
                    state=state,
                    step=outcome.step,
                    adapter_uri=outcome.adapter_uri,
                    total_seconds=seconds,
                    message=message,
                    reason=reason,
                )
            )

        if surroundings.ignored:
            progress.emit(
                Warned(f"`lorarl run` ignores what only a cluster can honour: {', '.join(surroundings.ignored)}")
            )
        try:
            await _train(job, manifest_folder, out_dir, surroundings, secrets, progress, interruption, outcome, clock)
        except asyncio.CancelledError:
            outcome.aborted = interruption.twice
            finish("interrupted", f"stopped at once; {outcome.how_to_go_on}", INTERRUPTED)
            return EXIT_ABORTED if interruption.twice else EXIT_INTERRUPTED
        except LorarlError as error:
            finish("failed", str(error), error.reason)
            raise
        except Exception as error:
            finish("failed", in_one_line(error), "InternalError")
            raise
        if outcome.done:
            finish("succeeded")
        else:
            finish("interrupted", outcome.how_to_go_on, INTERRUPTED)
    print(final_message(read_summary(out_dir)))
    return 0 if outcome.done else EXIT_INTERRUPTED


@contextlib.contextmanager
def _report_after(out_dir: Path, outcome: _Outcome) -> Iterator[None]:
    """Write the report of a run that trained, however it ended; but not in a pod that is being taken away, where nobody could read it."""
    try:
        yield
    finally:
        if outcome.started and not outcome.aborted and not drain_asked():
            try:
                write_report(out_dir)
            except Exception as error:  # noqa: BLE001 - a picture that cannot be drawn is no failure of the training
                print(f"warning: report.html could not be written: {type(error).__name__}: {error}")


async def _train(
    job: LoRARLJob,
    manifest_folder: Path,
    out_dir: Path,
    surroundings: Surroundings,
    secrets: Secrets,
    progress: Progress,
    interruption: Interruption,
    outcome: _Outcome,
    clock: StartClock,
) -> None:
    """Set up, train, wait for the uploads; leave nothing running behind."""
    spec = job.spec
    scorer = make_scorer(spec.reward, manifest_folder) if spec.reward else None
    with contextlib.ExitStack() as stack:
        if scorer:
            stack.callback(scorer.close)
            scorer.warm_up()
        progress.emit(
            Noted(
                f"starting Ray and {spec.world_size} worker(s): imports of torch, Megatron and vLLM take most of a start"
            )
        )
        async with Machines(spec, surroundings.log_dir, clock) as machines:
            progress.emit(Noted(f"base model: {spec.model.uri}"))
            with clock.part("tokenizer"):
                vocabulary = await in_background(inputs.load_vocabulary, spec, secrets)
            rows, (workers, fingerprint), _ = await asyncio.gather(
                in_background(clock.part("data")(inputs.load_rows), spec, vocabulary, secrets),
                _fetch_model(machines, secrets, interruption, clock),
                scorer.ready() if scorer else asyncio.sleep(0),
            )
            identity = training_identity(spec, fingerprint)
            with clock.part("look at checkpoints"):
                first_adapter, _ = await asyncio.gather(
                    in_background(inputs.first_adapter, spec, secrets, fingerprint),
                    in_background(check_checkpoints, job, secrets, identity, out_dir / "unpublished"),
                )
            progress.emit(
                Noted(
                    f"data: {len(rows.train):,} rows, {len(rows.held_out):,} held out; loading the model in the workers"
                )
            )
            await workers.open_checkpoints(job.name, job.uid, secrets, identity, out_dir / "unpublished")
            built = await workers.start(vocabulary.stop_token_ids, first_adapter)
            if built.memory:
                progress.emit(Noted(f"memory of each GPU:\n{built.memory}"))
            with clock.part("resume"):
                resumed = await workers.resume()
            for warning in (*rows.warnings, *built.warnings, *resumed.warnings):
                progress.emit(Warned(warning))
            session = Session(
                spec=spec,
                workers=workers,
                algorithm=get_algorithm(spec.algorithm),
                scorer=scorer,
                train_rows=rows.train,
                eval_rows=rows.held_out,
                order=DataOrder(len(rows.train), spec.trainer.seed),
                decode=vocabulary.decode,
                progress=progress,
                stop=interruption.asked,
                clock=clock,
                steer=surroundings.steer,
                position=resumed.position,
                published_step=resumed.step,
                evaluated=_was_evaluated(out_dir, resumed.step),
            )
            progress.emit(_started(job, built, resumed, out_dir))
            if resumed.published:  # the run before may have ended before it told
                session.announce([resumed.published])
            outcome.step, outcome.adapter_uri, outcome.started = resumed.step, resumed.adapter_uri, True
            interruption.can_finish = True
            try:
                outcome.step = await train(session, resumed.step)
                await session.drain_uploads()
                outcome.done = outcome.step >= session.total_steps
            except Exception as failure:
                await session.rescue_uploads(failure)
                raise
            finally:
                outcome.adapter_uri = session.adapter_uri or outcome.adapter_uri


async def _fetch_model(
    machines: Machines, secrets: Secrets, interruption: Interruption, clock: StartClock
) -> tuple[WorkerGroup, str]:
    """Have the workers' machines fetch the base model; return the workers and the model's fingerprint."""
    workers = await machines.workers()
    interruption.install()
    with clock.part("base model"):
        return workers, await workers.fetch_model(secrets)


def _was_evaluated(out_dir: Path, step: int) -> bool | None:
    """Whether an earlier run of the job evaluated this step; None where none wrote the step down here, as in another pod."""
    row = next((row for row in read_rows(out_dir / METRICS) if row["step"] == step), None)
    return None if row is None else (row.get("eval_score"), row.get("eval_loss")) != (None, None)


def _started(job: LoRARLJob, built: Built, resumed: Resumed, out_dir: Path) -> RunStarted:
    spec = job.spec
    return RunStarted(
        job=job.name,
        base_model=base_model_name(spec),
        base_revision=spec.model.revision,
        algorithm=spec.algorithm.type,
        adapter=AdapterSummary(
            type=spec.adapter.type,
            rank=spec.adapter.rank,
            alpha=spec.adapter.alpha,
            modules=built.modules,
            trainable_parameters=built.trainable_parameters,
            total_parameters=built.total_parameters,
        ),
        total_steps=spec.trainer.steps,
        resumed_from_step=resumed.step or None,
        out_dir=str(out_dir),
        manifest=yaml.safe_dump(job.model_dump(by_alias=True, mode="json", exclude_unset=True), sort_keys=False),
    )
