"""What is served: a run, the folder of a job's checkpoints, or one adapter."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_api.v1alpha1.stores import WRITABLE
from lorarl_trainer.checkpoint.contents import ADAPTER, step_of
from lorarl_trainer.errors import InputError, in_one_line
from lorarl_trainer.lora.files import CONFIG_FILE, METADATA_FILE, WEIGHTS_FILE
from lorarl_trainer.models.mixtures import has_experts
from lorarl_trainer.progress.metrics_file import read_summary
from lorarl_trainer.progress.runs import run_folder
from lorarl_trainer.progress.standing import RUNNING, STARTING, state_in
from lorarl_trainer.storage import Store, open_store
from lorarl_trainer.storage.fingerprint import fingerprint
from lorarl_trainer.storage.retries import HASTY
from lorarl_trainer.storage.secrets import secret_of, secrets_on_demand
from lorarl_trainer.trained_adapters.serving.fit import Terms, rank_of
from lorarl_trainer.trained_adapters.serving.versions import Choice, Version, read_latest
from lorarl_trainer.trained_adapters.source import ARGUMENT, Source, find_adapter
from lorarl_trainer.trained_adapters.source import READS as OF_ADAPTERS

READS = (*OF_ADAPTERS, "spec.data.chatTemplateArguments")
"""What serving reads of a job."""


@dataclass(frozen=True)
class Request:
    """What the user asks for.

    Attributes:
        name: a run, or the folder or URI of a job's checkpoints or of an adapter.
        choice: which checkpoint the name means.
        versions: how many are served at a time.
        more: options for vLLM.
    """

    name: str
    job: Path | None
    overrides: Sequence[str]
    base: str | None
    choice: Choice
    versions: int
    host: str
    port: int
    out: Path | None
    more: Sequence[str]


@dataclass(frozen=True)
class Subject:
    """What was found.

    Attributes:
        name: what requests call the adapter.
        source: the base model, and one of the adapters.
        run: the run's folder on this machine, if it is one.
        home: the job's folder in its store, where further checkpoints appear; None for one adapter.
    """

    name: str
    source: Source
    run: Path | None
    home: Store | None

    def alone(self) -> Version:
        """Return the adapter, if it is one."""
        folder = self.source.adapter
        key = hashlib.sha256((folder / WEIGHTS_FILE).read_bytes()).hexdigest()[:8]
        return Version.of(key, step_of(folder.absolute().parent.name), folder)


def published(name: str) -> bool:
    """Return whether there is an adapter to serve; False for a run that trains and has published none yet."""
    run = run_folder(name)
    summary = read_summary(run) if run else {}
    if run is None or summary.get("adapter_uri"):
        return True
    return state_in(run) not in (RUNNING, STARTING)


def find_subject(request: Request) -> Subject:
    """Find base model and adapters, and fetch what is elsewhere.

    Raises:
        LorarlError: there are none.
        ManifestError: the manifest has faults.
    """
    run, home = run_folder(request.name), _home(request)
    name = request.name
    if run is None and home is not None and (latest := read_latest(home)) is not None and latest.path:
        name = f"{request.name.rstrip('/')}/{latest.path}/{ADAPTER}"
    if home is None and request.choice is not None:
        got = f"{request.choice}, but {name} is one adapter"
        raise InputError("--checkpoint", got, "a run, or the folder of a job's checkpoints", "Leave it out.")
    source = find_adapter(name, request.job, request.overrides, request.base, "newest" if run else None, READS)
    return Subject(_name(source), source, run, home)


def terms_of(source: Source, *, on_gpu: bool) -> Terms:
    """Return what a server is started for: this base model, and the rank of its adapter. `on_gpu`: whether on a GPU.

    Raises:
        InputError: the base model cannot be fetched.
    """
    from huggingface_hub import snapshot_download

    folder = Path(source.base)
    try:
        found = folder if folder.is_dir() else Path(snapshot_download(source.base, revision=source.revision))
        experts = has_experts(json.loads((found / "config.json").read_bytes()))
        rank = rank_of(json.loads((source.adapter / CONFIG_FILE).read_bytes()))
        return Terms(source.base, fingerprint(found), rank, experts_on_cpu=experts and not on_gpu)
    except Exception as error:  # the hub's client raises nearly every type
        got = f"{source.name}, whose base model {source.base} cannot be read ({in_one_line(error)})"
        raise InputError(ARGUMENT, got, "a model in Hugging Face format", "Name its folder with --base.") from error


def _home(request: Request) -> Store | None:
    """Return the folder of a job's checkpoints; None for an adapter by itself."""
    if run := run_folder(request.name):
        summary = read_summary(run)
        if not (uri := str(summary.get("adapter_uri") or "")):
            return None
        keys = _keys(load_job(str(summary["manifest"]), request.overrides, READS).spec)
        return open_store(uri.removesuffix(f"/{ADAPTER}").rpartition("/")[0], keys, field=ARGUMENT, retries=HASTY)
    is_uri = request.name.partition(":")[0] in WRITABLE
    if not is_uri and not Path(request.name).is_dir():
        return None
    keys = _keys(load_job(request.job, request.overrides, READS).spec) if request.job is not None else {}
    uri = request.name if is_uri else f"file://{Path(request.name).absolute()}"
    home = open_store(uri, keys, field=ARGUMENT, retries=HASTY)
    return home if read_latest(home) is not None else None


def _keys(spec: LoRARLJobSpec) -> Mapping[str, str]:
    """Return the keys of the job's store."""
    return secret_of(secrets_on_demand(spec), spec.checkpoint.credentials_secret)


def _name(source: Source) -> str:
    """Return the job's name, or that of the adapter's folder."""
    metadata = source.adapter / METADATA_FILE
    if metadata.is_file() and (job := json.loads(metadata.read_text(encoding="utf-8")).get("job")):
        return str(job)
    return source.job.name if source.job else source.adapter.absolute().name
