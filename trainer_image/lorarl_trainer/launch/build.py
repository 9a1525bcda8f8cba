"""The composition root: from a manifest to a `Session` that is ready to train. The only file that knows every room.

Mistakes in the manifest are looked for before Ray and the workers start, or while they do if that takes long.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.algorithms.registry import get_algorithm
from lorarl_trainer.checkpoint.identity import training_identity
from lorarl_trainer.data.stream import RowStream
from lorarl_trainer.launch.earlier_evaluations import recorded
from lorarl_trainer.launch.elsewhere import Elsewhere, in_words, open_elsewhere
from lorarl_trainer.launch.environment_pods import environment_of, kept_in_pods
from lorarl_trainer.launch.preparation import UNPUBLISHED, Prepared, Stored, look_into_stores, prepare
from lorarl_trainer.launch.provenance import provenance
from lorarl_trainer.launch.ray_cluster import RayCluster
from lorarl_trainer.launch.replay import Rehearsal
from lorarl_trainer.launch.resumption import (
    STARTS,
    beyond_last_step,
    keep_manifest,
    left_unfinished,
)
from lorarl_trainer.launch.rollouts import make_rollouts
from lorarl_trainer.launch.runtime import Runtime, cluster_runtime, local_runtime, of_attempt
from lorarl_trainer.launch.shared_cluster import SharedCluster, shared_workers
from lorarl_trainer.launch.signals import Interruption
from lorarl_trainer.launch.started import on_fewer, run_started
from lorarl_trainer.launch.unusual import unusual_settings
from lorarl_trainer.launch.watchdog import Watchdog
from lorarl_trainer.lora.targets import last_parts
from lorarl_trainer.planning.choices_table import plan_title
from lorarl_trainer.pods.owner import owner_of
from lorarl_trainer.progress import (
    Noted,
    Progress,
    downloads_to,
    open_command,
)
from lorarl_trainer.protocols.workers import Built, JobCheckpoints, Resumed
from lorarl_trainer.record.open import open_record
from lorarl_trainer.record.publisher import RecordPublisher
from lorarl_trainer.rewards.output import Output
from lorarl_trainer.rewards.scorer import Scorers, open_scorers
from lorarl_trainer.rewards.source import fetched_sources
from lorarl_trainer.rollout.ahead import Ahead
from lorarl_trainer.session import RunCheckpoints, Session, starting_curriculum, starting_kl_coefficient
from lorarl_trainer.storage.base_model import is_remote
from lorarl_trainer.storage.secrets import Secrets, read_secrets
from lorarl_trainer.threads import in_background
from lorarl_trainer.timing import StartClock
from lorarl_trainer.workers.group import WorkerGroup

HEAD_START_SECONDS = 3.0
"""How long Ray's start waits for the checks that need no worker. A mistake that they find costs no start and no end."""


@dataclass(frozen=True)
class Launch:
    """What a run is started with.

    Attributes:
        folder: the manifest's; a reward function may be beside it.
        out_dir: where the run's files go.
        record: publishes the run's files to the checkpoints' store; None if they stay in out_dir alone.
        watchdog: records where the run hangs; None outside a cluster, where nothing ends it for that.
        rehearsal: where rollouts are dumped to, or replayed from.
    """

    job: LoRARLJob
    folder: Path
    out_dir: Path
    runtime: Runtime
    secrets: Secrets
    clock: StartClock
    record: RecordPublisher | None = None
    watchdog: Watchdog | None = None
    rehearsal: Rehearsal = field(default_factory=Rehearsal)

    @classmethod
    def of_manifest(
        cls, path: Path, out_dir: Path | None, overrides: list[str], rehearsal: Rehearsal, *, in_cluster: bool
    ) -> Launch:
        """Read what a run is started with, on this machine or as the driver in a cluster's pods.

        Raises:
            LorarlError, ManifestError: something in the manifest, or a secret that it names, cannot be used.
        """
        clock = StartClock("driver", "process")
        job = load_job(path, overrides)
        job = of_attempt(job) if in_cluster else rehearsal.of(job)
        out_dir = out_dir or Path("out") / job.name
        runtime = cluster_runtime(job, path) if in_cluster else local_runtime(job, out_dir)
        secrets = read_secrets(job.spec)
        record = open_record(job, owner_of(job), secrets, out_dir, attempt=runtime.attempt)
        watchdog = Watchdog(runtime.manifest, out_dir / "logs") if runtime.manifest else None
        return cls(job, path.parent, out_dir, runtime, secrets, clock, record, watchdog, rehearsal)

    @property
    def unpublished(self) -> Path:
        """Where checkpoints go that could not be published."""
        return self.out_dir / UNPUBLISHED

    @property
    def reward_log(self) -> Path | None:
        """What reward functions print; None in a pod, whose own log keeps it longer than its disk."""
        return self.runtime.log_dir and self.runtime.log_dir / "rewards.log"


@contextlib.asynccontextmanager
async def open_run(launch: Launch, progress: Progress, interruption: Interruption) -> AsyncIterator[OpenRun]:
    """Check the job's inputs and start the workers; on leaving, end it all.

    Raises:
        LorarlError: something in the manifest, or something it names, cannot be used.
    """
    clock = launch.clock
    reward_output = Output(launch.reward_log, progress.warn)
    with contextlib.ExitStack() as stack:
        # From here on the job has the digests of its reward code, as part of the training's identity and record.
        spec, sources = await in_background(stack.enter_context, fetched_sources(launch.job.spec, launch.secrets))
        job = launch.job.model_copy(update={"spec": spec})
        launch = replace(launch, job=job)
        here = not launch.runtime.in_pods
        plays = environment_of(None if here else spec.cluster.environments, progress.warn)
        scorers = stack.enter_context(
            open_scorers(spec, launch.folder, output=reward_output, sources=sources, environment_of=plays)
        )
        progress.emit(Noted(f"checking base model {spec.model.uri}, data, reward and stores"))
        on_bytes = downloads_to(progress) if here else None
        # Where the workers are on this machine, they find the model that the checks have fetched.
        fetch = here and "RAY_ADDRESS" not in os.environ
        checks = asyncio.create_task(
            prepare(
                job, launch.secrets, launch.unpublished, scorers, clock, here=here, fetch_model=fetch, on_bytes=on_bytes
            )
        )
        stack.callback(_forget, checks)
        if here:
            await _head_start(checks)
            progress.emit(Noted(f"live report: {open_command(launch.out_dir)}, in another terminal"))
        shared = shared_workers()
        starting = f"starting Ray and {in_words(spec)}; imports of torch, Megatron and vLLM take longest"
        progress.emit(Noted("joining the workers that the trials of a sweep share" if shared else starting))
        async with (
            open_elsewhere(job, launch.out_dir, progress.warn, in_pods=not here) as elsewhere,
            SharedCluster(job, shared, clock)
            if shared
            else RayCluster(
                spec,
                launch.runtime.log_dir,
                clock,
                elsewhere.servers,
                elsewhere.shares,
                launch.runtime.wait_seconds,
            ) as cluster,
            elsewhere.ending(),
            kept_in_pods(scorers.environment, cluster.workers),
        ):
            fetching = _fetch_model(launch, cluster, interruption, progress, checks if fetch else None)
            engines = elsewhere.start(checks, cluster.workers)
            prepared, (workers, fingerprint), _ = await asyncio.gather(checks, fetching, engines)
            yield OpenRun(
                launch, progress, interruption, scorers, cluster, prepared, workers, fingerprint, clock, elsewhere
            )


@dataclass
class OpenRun:
    """What a run holds from its start to its end: its inputs, its rewards and Ray. Its workers may be replaced.

    Attributes:
        workers: the present ones. They have the base model on their machines.
        elsewhere: what generates in the place of their engines.
    """

    launch: Launch
    progress: Progress
    interruption: Interruption
    scorers: Scorers
    cluster: RayCluster | SharedCluster
    prepared: Prepared
    workers: WorkerGroup
    fingerprint: str
    clock: StartClock
    elsewhere: Elsewhere

    async def session_of_new_workers(self, before: Session, *, lost: bool) -> Session:
        """Replace the workers, after a loss or by more of them, and let these continue from the newest checkpoint.

        If they are like those of the session before, engine and trainer agree as they did there.

        Raises:
            NodeLostError: a machine was lost meanwhile.
            LorarlError: something that the job names cannot be used any more.
        """
        self.clock = StartClock("driver", "end of the old workers", began=time.time())
        self.workers = await self.cluster.replace_workers(self.clock, lost=lost)
        with self.clock.part("base model"):
            self.fingerprint = await self.workers.fetch_model()
        session = await self.session()
        if session.computes == before.computes and not self.elsewhere.servers:  # which may be others by now
            session.limits = before.limits
        return session

    async def session(self) -> Session:
        """Load the job into the workers; return a session that continues from the newest checkpoint, if there is one.

        Raises:
            LorarlError: the job does not fit the machines, or its checkpoints cannot be used.
        """
        stored = await self._stored()
        built = await self._built(stored)
        resumed = await self._resumed()
        await self.elsewhere.ready(self.fingerprint, self.clock)
        for warning in self._warnings(stored, built, resumed):
            self.progress.warn(warning)
        session = await self._session_of(built, resumed)
        await self._report_start(built, resumed)
        if resumed.published:  # the previous run may have ended before it reported this one
            session.checkpoints.report([resumed.published])
        return session

    async def _stored(self) -> Stored:
        """Return what the stores hold for this job with the base model that the workers have."""
        launch, prepared, found = self.launch, self.prepared, self.prepared.stored
        if found is not None and found.fingerprint == self.fingerprint:
            return found
        job = launch.job, launch.secrets, launch.unpublished
        return await in_background(look_into_stores, *job, self.fingerprint, prepared.model.sizes, self.clock)

    async def _built(self, stored: Stored) -> Built:
        """Open the job's checkpoints, and load its model into the workers."""
        launch, workers, rows, job = self.launch, self.workers, self.prepared.rows, self.launch.job
        held_out = sum(map(len, rows.evals.values()))
        what = f"data: {len(rows.train):,} rows, {held_out:,} held out; loading the model in the workers"
        self.progress.emit(Noted(what))
        identity = training_identity(job.spec, self.fingerprint)
        template = self.prepared.model.vocabulary.own_template
        made_of = provenance(job, rows.digests, launch.folder, stored.learned_from(job.spec), template)
        await workers.open_checkpoints(JobCheckpoints(owner_of(job), identity, launch.unpublished, made_of, template))
        if launch.watchdog:
            launch.watchdog.watch(workers.stacks)
        stop_token_ids = self.prepared.model.vocabulary.stop_token_ids
        built = await workers.start(stop_token_ids, stored.initial_adapter, stored.teacher)
        self.progress.emit(Noted(f"{plan_title(workers.spec)}\n{built.memory}"))
        return built

    async def _resumed(self) -> Resumed:
        """Continue from the newest checkpoint, if there is one, and bring the files of the runs before back."""
        with self.clock.part("resume"):
            resumed = await self.workers.resume()
        if resumed.step and (record := self.launch.record) and (failed := await in_background(record.restore)):
            self.progress.warn(failed)
        return resumed

    def _warnings(self, stored: Stored, built: Built, resumed: Resumed) -> list[str]:
        """Return what to know of this start, each once: workers find some of what the verdict says."""
        spec, without_start = self.launch.job.spec, stored.warnings(resumed.step)
        found = (
            on_fewer(spec, self.workers.spec),
            unusual_settings(spec),
            without_start,
            stored.doubts(spec, self.prepared.model.vocabulary.tokenizer.chat_template),
            self.prepared.model.verdict.slower,
            self.prepared.rows.warnings,
            built.warnings,
            resumed.warnings,
            beyond_last_step(spec.trainer.steps, resumed.step),
            left_unfinished(spec, resumed.driver.unfinished),
        )
        return list(dict.fromkeys(chain.from_iterable(found)))

    async def _session_of(self, built: Built, resumed: Resumed) -> Session:
        """Return the session of workers that have been loaded, from the step on that they resumed from."""
        launch, workers, rows, progress = self.launch, self.workers, self.prepared.rows, self.progress
        spec, rehearsal = launch.job.spec, launch.rehearsal
        before = recorded(launch.out_dir, spec, resumed.step)
        if before.chosen_by:  # the last run may have ended before it compared them
            await workers.compare(before.chosen_by)
        curriculum = starting_curriculum(spec, rows.train, resumed)
        stream = RowStream(rows.train, spec.trainer.seed, resumed.driver.position, rows.parts, curriculum)
        sources = rows, self.prepared.model.vocabulary, self.scorers, stream, progress
        dump = rehearsal.dumping(launch.job)
        rollouts = make_rollouts(spec, workers, *sources, rehearsal.replay, resumed.driver.unfinished)
        return Session(
            spec=spec,
            workers=workers,
            algorithm=get_algorithm(spec.algorithm, spec.rollout.max_response_tokens),
            rollouts=rollouts,
            checkpoints=RunCheckpoints(spec, workers, progress, resumed.step, resumed.adapter_uri, before.results),
            progress=progress,
            stop=self.interruption.asked,
            clock=self.clock,
            total_steps=spec.trainer.steps,
            families=last_parts(built.modules),
            computes=(built.gpu, built.ranks),
            adapter_version=resumed.adapter_version or 1,
            evaluated=before.evaluated,
            steer=launch.runtime.steering and launch.runtime.steering(workers),
            kl_coefficient=starting_kl_coefficient(spec, resumed),
            curriculum=curriculum,
            keep=dump.keep if dump else None,
            servers=self.elsewhere.servers,
            ahead=rollouts if isinstance(rollouts, Ahead) else None,
        )

    async def _report_start(self, built: Built, resumed: Resumed) -> None:
        """Report how the run starts, and keep its manifest for the next start to compare with."""
        out_dir = self.launch.out_dir
        chat = self.launch.job.spec.data.chat_template and bool(self.prepared.model.vocabulary.tokenizer.chat_template)
        job, folder, rows = self.launch.job, self.launch.folder, self.prepared.rows
        started = run_started(job, self.workers.spec, folder, out_dir, built, resumed, rows, chat=chat)
        if self.launch.runtime.in_pods:
            started = replace(started, pods=await self.workers.pods())
        self.progress.emit(started)
        try:
            keep_manifest(out_dir, started.manifest, started.resumed_from_step)
        except OSError as error:  # a full disk stops no training before its checkpoints do
            self.progress.warn(f"the manifest of this start is not kept in {out_dir / STARTS}: {error}")


async def _head_start(checks: asyncio.Task[Prepared]) -> None:
    """Let the checks end before Ray starts, unless they take long, as with a download.

    Raises:
        LorarlError: one of them found a mistake.
    """
    await asyncio.wait([checks], timeout=HEAD_START_SECONDS)
    if checks.done():
        checks.result()


def _forget(checks: asyncio.Task[Prepared]) -> None:
    """Stop waiting for checks, and for what they found: another error came first."""
    checks.cancel()
    if checks.done() and not checks.cancelled():
        checks.exception()


async def _fetch_model(
    launch: Launch,
    cluster: RayCluster | SharedCluster,
    interruption: Interruption,
    progress: Progress,
    fetching: asyncio.Task[Prepared] | None,
) -> tuple[WorkerGroup, str]:
    """Fetch the base model to the workers' machines; return the workers and the model's fingerprint.

    `fetching` is a task that fetches it to this machine, which is also the workers'.
    """
    workers = await cluster.workers()
    interruption.install()
    if fetching is not None:
        await fetching
    elif is_remote(launch.job.spec):
        progress.emit(Noted(f"downloading {launch.job.spec.model.uri}, unless it was downloaded before"))
    with launch.clock.part("base model"):
        return workers, await workers.fetch_model()
