"""What a run reads before its first step, and every check that needs no worker. Nothing here needs Ray or torch."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from lorarl_api.v1alpha1 import LoRARLJob, LoRARLJobSpec
from lorarl_trainer.checkpoint.identity import training_identity
from lorarl_trainer.checkpoint.open import check_checkpoints
from lorarl_trainer.devices.base import Gpu, Host
from lorarl_trainer.devices.host_memory import host_memory
from lorarl_trainer.devices.nvidia_smi import largest_gpu
from lorarl_trainer.errors import LorarlError
from lorarl_trainer.launch import inputs
from lorarl_trainer.launch.adapter_modules import require_fitting_modules
from lorarl_trainer.launch.init_from import doubts, read_initial_adapter
from lorarl_trainer.launch.room import require_room
from lorarl_trainer.lora.files import INIT_FROM, TEACHER
from lorarl_trainer.lora.initial import InitialAdapter
from lorarl_trainer.models.model_sizes import ModelSizes, read_model_sizes, sizes_of
from lorarl_trainer.planning.verdict import Verdict, judge
from lorarl_trainer.pods.owner import owner_of
from lorarl_trainer.rewards.scorer import Scorers
from lorarl_trainer.storage.base_model import fetch_base_config, fetch_base_model, is_remote
from lorarl_trainer.storage.meter import OnBytes
from lorarl_trainer.storage.secrets import Secrets
from lorarl_trainer.threads import in_background
from lorarl_trainer.timing import StartClock

UNPUBLISHED = "unpublished"
"""Folder in a run's folder with checkpoints that could not be published."""


@dataclass(frozen=True)
class Stored:
    """What the job's stores hold for a base model.

    Attributes:
        initial_adapter: that of `spec.adapter.initFrom`; None for a new adapter.
        teacher: the adapter that teaches; None if none does.
        no_start: why that of `spec.adapter.initFrom` cannot be used. Only a run that resumes does without: its
            checkpoint has the adapter.
    """

    fingerprint: str
    initial_adapter: InitialAdapter | None
    teacher: InitialAdapter | None
    no_start: LorarlError | None = None

    def warnings(self, resumed_step: int) -> list[str]:
        """Return what to know of a run that continues after this step without the adapter that it started from.

        Raises:
            LorarlError: it starts from the beginning.
        """
        if self.no_start is None:
            return []
        if not resumed_step:
            raise self.no_start
        return [f"{self.no_start} The training continues from its checkpoint, which has the whole adapter"]

    def doubts(self, spec: LoRARLJobSpec, chat_template: object) -> list[str]:
        """Return warnings about the adapters: see `init_from.doubts`."""
        named = {INIT_FROM: self.initial_adapter, TEACHER: self.teacher}
        return [line for field, adapter in named.items() for line in doubts(adapter, spec, chat_template, field)]

    def learned_from(self, spec: LoRARLJobSpec) -> dict[str, bytes | None]:
        """Return the weights of the adapters that every step reads, by field: a teacher, and the reference of a start.

        Otherwise the adapter of the start is read once, and later changes to it do not matter.
        """
        reference = self.initial_adapter if spec.reference == "start" else None
        used = {INIT_FROM: reference, TEACHER: self.teacher}
        return {field: adapter.weights if adapter else None for field, adapter in used.items()}


@dataclass(frozen=True)
class JudgedModel:
    """A base model that can be trained.

    Attributes:
        verdict: its family, why it trains slower than it could, and how each worker runs on this machine. That is not
            known where workers run elsewhere, or no GPU is known.
        sizes: those of its layers.
        vocabulary: its tokenizer, and what ends a completion.
    """

    verdict: Verdict
    sizes: ModelSizes
    vocabulary: inputs.Vocabulary


@dataclass(frozen=True)
class Prepared:
    """All that a run reads before its workers load.

    Attributes:
        stored: what the stores hold; None if the base model must be fetched first, to know its fingerprint.
        base: the base model's folder; None likewise.
    """

    model: JudgedModel
    rows: inputs.EncodedData
    stored: Stored | None
    base: Path | None


async def prepare(
    job: LoRARLJob,
    secrets: Secrets,
    unpublished: Path,
    scorers: Scorers,
    clock: StartClock,
    *,
    here: bool = True,
    fetch_model: bool = False,
    on_bytes: OnBytes | None = None,
) -> Prepared:
    """Read a job's inputs and check them. Of a remote model, only configuration and tokenizer are fetched at first.

    The stores come last: they would call a mistake in the manifest another training.

    Args:
        job: the job.
        secrets: its Secrets by name.
        unpublished: the folder of checkpoints that could not be published.
        scorers: those of the job's rewards.
        clock: times the parts.
        here: whether the workers run on this machine, so that its memory is theirs.
        fetch_model: whether to fetch a remote model too, once it is known that it can be trained.
        on_bytes: is called with the bytes of downloads.

    Raises:
        LorarlError: one of the inputs cannot be used, or the memory is too small.
    """
    judging = asyncio.create_task(in_background(_judge_model, job.spec, secrets, clock, here))
    model, rows, _ = await asyncio.gather(
        judging, _rows(job.spec, secrets, clock, judging, scorers, on_bytes), scorers.ready()
    )
    if scorers.environment is not None:
        fields = inputs.eval_fields(job.spec)
        held_out = ((fields[name], source) for name, source in job.spec.data.evaluations)
        for field, source in (*job.spec.data.sources.items(), *held_out):
            scorers.environment.require_tasks(field, source)
    stored, base = None, None
    if fetch_model or not is_remote(job.spec):
        fetch = clock.part("base model")(fetch_base_model) if is_remote(job.spec) else fetch_base_model
        base = await in_background(fetch, job.spec, secrets, on_bytes)
        await in_background(read_model_sizes, base.folder)  # refuses weights of another model than config.json's
        stored = await in_background(look_into_stores, job, secrets, unpublished, base.fingerprint, model.sizes, clock)
    return Prepared(model, rows, stored, base.folder if base else None)


def _judge_model(spec: LoRARLJobSpec, secrets: Secrets, clock: StartClock, here: bool) -> JudgedModel:
    with clock.part("model's configuration"):
        config = fetch_base_config(spec, secrets)
        verdict = judge(spec, config, _memory(spec) if here else None)
    with clock.part("tokenizer"):
        return JudgedModel(verdict, sizes_of(config), inputs.load_vocabulary(spec, secrets))


async def _rows(
    spec: LoRARLJobSpec,
    secrets: Secrets,
    clock: StartClock,
    judging: asyncio.Task[JudgedModel],
    scorers: Scorers,
    on_bytes: OnBytes | None,
) -> inputs.EncodedData:
    """Read the data while the tokenizer is loaded, and then encode it, with the tools that prompts show."""
    rows = await in_background(clock.part("data")(inputs.read_rows), spec, secrets, on_bytes)
    model, tools = await judging, []
    if scorers.environment is not None and not spec.opens_episodes:
        await scorers.environment.ready()
        tools = scorers.environment.tools
    encode = clock.part("tokens of the data")(inputs.encode_rows)
    return await in_background(encode, spec, rows, model.vocabulary, tools)


def _memory(spec: LoRARLJobSpec) -> Gpu | Host | None:
    """Return the memory of this machine's largest GPU, or for a CPU job the machine's own; None if there is no GPU."""
    return largest_gpu() if spec.on_gpu else host_memory()


def look_into_stores(
    job: LoRARLJob, secrets: Secrets, unpublished: Path, fingerprint: str, sizes: ModelSizes, clock: StartClock
) -> Stored:
    """Check the adapters that the job names, and that the job can resume and publish. Claims nothing.

    `fingerprint` and `sizes` are the base model's.

    Raises:
        LorarlError: an adapter does not fit, a store cannot be used, or it holds another training.
    """
    with clock.part("look at checkpoints"):
        start, no_start = None, None
        try:
            start = _fitting_adapter(job.spec, secrets, fingerprint, sizes, INIT_FROM)
        except LorarlError as error:
            if job.spec.reference == "start":
                raise
            no_start = error
        teacher = _fitting_adapter(job.spec, secrets, fingerprint, sizes, TEACHER)
        require_room(job, sizes)
        identity = training_identity(job.spec, fingerprint)
        resumes = check_checkpoints(job.spec, owner_of(job), secrets, identity, unpublished)
        if no_start and not resumes:
            raise no_start
        return Stored(fingerprint, start, teacher, no_start)


def _fitting_adapter(
    spec: LoRARLJobSpec, secrets: Secrets, fingerprint: str, sizes: ModelSizes, field: str
) -> InitialAdapter | None:
    adapter = read_initial_adapter(spec, secrets, fingerprint, field)
    if adapter is not None:
        require_fitting_modules(adapter, sizes, spec.adapter, field)
    return adapter
