"""`lorarl run`: from a manifest to a trained adapter. Sets the parts up, hands them to the loop, and ends in order.

What a user can have got wrong is looked for while Ray and the workers start, which takes most of the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

from lorarl_api.faults import ManifestError
from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer import prepare
from lorarl_trainer.algorithms import get_algorithm
from lorarl_trainer.data.order import DataOrder
from lorarl_trainer.errors import InputError, LorarlError
from lorarl_trainer.loop import train
from lorarl_trainer.machines import Machines
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
from lorarl_trainer.secrets import Secrets, read_secrets
from lorarl_trainer.session import Session
from lorarl_trainer.signals import Interruption
from lorarl_trainer.worker import Built, Resumed

EXIT_FAILED = 1
EXIT_INTERRUPTED = 75
"""EX_TEMPFAIL of sysexits.h: a checkpoint is published, and the same command goes on from it."""
EXIT_ABORTED = 130
"""What a shell reports of a program that Ctrl-C ended."""


def run_manifest(path: Path, out_dir: Path | None, overrides: list[str]) -> int:
    """Train the job of a manifest on this machine; return the exit code."""
    try:
        job = load_job(path, overrides)
        refuse_what_needs_a_cluster(job)
        return asyncio.run(_run(job, path.parent, out_dir or Path("out") / job.name))
    except (LorarlError, ManifestError) as error:
        print(f"lorarl: {error}", file=sys.stderr)
        return EXIT_FAILED


def refuse_what_needs_a_cluster(job: LoRARLJob) -> None:
    """Refuse what one machine cannot honour.

    Raises:
        InputError: naming the field.
    """
    if job.spec.suspend:
        raise InputError("spec.suspend", "true", "false for `lorarl run`", "Set it to false: --set spec.suspend=false.")
    if job.spec.cluster.nodes > 1:
        mend = "Use --set spec.cluster.nodes=1."
        raise InputError("spec.cluster.nodes", str(job.spec.cluster.nodes), "1 for `lorarl run`, which has this machine alone", mend)


def ignored_by_a_single_machine(job: LoRARLJob) -> list[str]:
    """Return what the manifest asks of a cluster and `lorarl run` leaves aside."""
    return sorted(label for label in job.metadata.labels if label.startswith("kueue.x-k8s.io/"))


@dataclass
class _Outcome:
    """How far a run came, known also when it fails."""

    step: int = 0
    adapter_uri: str | None = None
    started: bool = False
    """Whether training began: before, out_dir may hold the files of an earlier run."""

    @property
    def how_to_go_on(self) -> str:
        """What the same command will do."""
        if self.adapter_uri is None:
            return "no checkpoint is published yet, and the same command starts anew"
        return f"the same command goes on from the newest checkpoint, {self.adapter_uri.removesuffix('/lora_adapter')}"


async def _run(job: LoRARLJob, manifest_folder: Path, out_dir: Path) -> int:
    clock, outcome = time.perf_counter(), _Outcome()
    secrets = read_secrets(job.spec)
    with open_progress(out_dir, job.spec.tracking, secrets) as progress, Interruption(progress) as interruption:

        def finish(state: Literal["succeeded", "interrupted", "failed"], message: str) -> None:
            seconds = time.perf_counter() - clock
            if outcome.started and (rows := read_rows(out_dir / METRICS)):
                outcome.step = rows[-1]["step"]  # also where the loop ended by an error
            progress.emit(
                RunFinished(state=state, step=outcome.step, adapter_uri=outcome.adapter_uri, total_seconds=seconds, message=message)
            )

        if ignored := ignored_by_a_single_machine(job):
            progress.emit(Warned(f"`lorarl run` ignores what only a cluster can honour: {', '.join(ignored)}"))
        try:
            await _train(job, manifest_folder, out_dir, secrets, progress, interruption, outcome)
        except asyncio.CancelledError:
            finish("interrupted", f"stopped at once; {outcome.how_to_go_on}")
            return EXIT_ABORTED if interruption.twice else EXIT_INTERRUPTED
        except Exception as error:
            finish("failed", str(error) if isinstance(error, LorarlError) else f"{type(error).__name__}: {error}")
            raise
        done = outcome.step == job.spec.trainer.steps
        finish("succeeded" if done else "interrupted", "" if done else outcome.how_to_go_on)
    write_report(out_dir)
    print(final_message(read_summary(out_dir)))
    return 0 if done else EXIT_INTERRUPTED


async def _train(
    job: LoRARLJob,
    manifest_folder: Path,
    out_dir: Path,
    secrets: Secrets,
    progress: Progress,
    interruption: Interruption,
    outcome: _Outcome,
) -> None:
    """Set up, train, wait for the uploads; leave nothing running behind."""
    spec = job.spec
    scorer = make_scorer(spec.reward, manifest_folder) if spec.reward else None
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="lorarl-"))
        if scorer:
            stack.callback(scorer.close)
            scorer.warm_up()
        progress.emit(Noted(f"starting Ray and {spec.world_size} worker(s): imports of torch, Megatron and vLLM take most of a start"))
        async with Machines(spec, out_dir / "logs") as machines:
            progress.emit(Noted(f"base model: {spec.model.uri}"))
            model = await asyncio.to_thread(prepare.load_model, spec, secrets)
            identity = prepare.identity(spec, model.fingerprint)
            rows, first_adapter, _, _ = await asyncio.gather(
                asyncio.to_thread(prepare.load_rows, spec, model, secrets),
                asyncio.to_thread(prepare.first_adapter, spec, secrets, model, Path(scratch)),
                asyncio.to_thread(prepare.check_checkpoints, job, secrets, identity, out_dir / "unpublished"),
                scorer.ready() if scorer else asyncio.sleep(0),
            )
            workers = await machines.workers()
            interruption.install()
            progress.emit(Noted(f"data: {len(rows.train):,} rows, {len(rows.held_out):,} held out; loading the model in the workers"))
            built = await workers.start(model.folder, model.stop_token_ids, first_adapter)
            resumed = await workers.resume(job.name, secrets, identity, out_dir / "unpublished")
            for warning in (*rows.warnings, *resumed.warnings):
                progress.emit(Warned(warning))
            session = Session(
                spec=spec,
                workers=workers,
                algorithm=get_algorithm(spec.algorithm),
                scorer=scorer,
                train_rows=rows.train,
                eval_rows=rows.held_out,
                order=DataOrder(len(rows.train), spec.trainer.seed),
                decode=model.decode,
                progress=progress,
                stop=interruption.asked,
                position=resumed.position,
            )
            progress.emit(_started(job, built, resumed, out_dir))
            outcome.step, outcome.adapter_uri, outcome.started = resumed.step, resumed.adapter_uri, True
            interruption.can_finish = True
            try:
                outcome.step = await train(session, resumed.step)
                await session.drain_uploads()
            finally:
                outcome.adapter_uri = session.adapter_uri or outcome.adapter_uri


def _started(job: LoRARLJob, built: Built, resumed: Resumed, out_dir: Path) -> RunStarted:
    spec = job.spec
    return RunStarted(
        job=job.name,
        base_model=prepare.base_model_name(spec),
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
