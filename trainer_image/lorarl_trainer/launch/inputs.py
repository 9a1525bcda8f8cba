"""What a run needs before the first step: the base model's files, the tokenizer, the rows, and what training this is."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lorarl_api.v1alpha1 import DataSource, LoRARLJob, LoRARLJobSpec
from lorarl_trainer.checkpoint import CheckpointStore
from lorarl_trainer.checkpoint.identity import require_same_training
from lorarl_trainer.data.encoding import EncodedRow, EncodedRows, PromptEncoder, encode_examples, encode_prompts
from lorarl_trainer.data.rows import load_rows as read_rows
from lorarl_trainer.data.tokenizer import load_tokenizer, stop_token_ids
from lorarl_trainer.errors import unreadable
from lorarl_trainer.launch.init_from import read_first_adapter
from lorarl_trainer.planning.supported_models import require_known_base
from lorarl_trainer.rewards.scorer import needs_answers
from lorarl_trainer.storage import open_store
from lorarl_trainer.storage.downloads import (
    fetch_data,
    fetch_model,
    local_path,
    read_generation_config,
    read_model_config,
)
from lorarl_trainer.storage.secrets import Secrets, secret_of

_HEAD_BYTES = 1 << 20


@dataclass(frozen=True)
class Vocabulary:
    """What the driver needs of the base model. The weights are for the workers' machines.

    Attributes:
        tokenizer: of transformers.
        stop_token_ids: a completion ends with any of them.
    """

    tokenizer: Any
    stop_token_ids: tuple[int, ...]

    def decode(self, completions: Sequence[Sequence[int]]) -> list[str]:
        """Return the completions' texts, special tokens left out."""
        texts: list[str] = self.tokenizer.batch_decode(completions, skip_special_tokens=True)
        return texts


@dataclass(frozen=True)
class BaseModel:
    """The base model on a machine.

    Attributes:
        folder: in Hugging Face format.
        fingerprint: changes with the model's content; cheap to make.
    """

    folder: Path
    fingerprint: str


@dataclass(frozen=True)
class Rows:
    """Encoded rows, and what a person should be told of them."""

    train: list[EncodedRow]
    held_out: list[EncodedRow]
    warnings: list[str]


def load_vocabulary(spec: LoRARLJobSpec, secrets: Secrets) -> Vocabulary:
    """Fetch all of the base model but its weights to this machine, look at its configuration, and load its tokenizer.

    Raises:
        LorarlError: there is no usable model.
    """
    folder = _fetch_model(spec, secrets, weights=False)
    tokenizer = load_tokenizer(folder)
    require_known_base(read_model_config(folder), spec.rollout.max_prompt_tokens + spec.rollout.max_response_tokens)
    return Vocabulary(tokenizer, tuple(stop_token_ids(tokenizer, read_generation_config(folder))))


def fetch_base_model(spec: LoRARLJobSpec, secrets: Secrets) -> BaseModel:
    """Fetch the base model to this machine. Once, however many processes of it ask.

    Raises:
        LorarlError: there is no usable model, or no room for it.
    """
    folder = _fetch_model(spec, secrets, weights=True)
    try:
        return BaseModel(folder, fingerprint(folder))
    except OSError as error:
        raise unreadable("spec.model.uri", spec.model.uri, folder, error) from error


def load_rows(spec: LoRARLJobSpec, vocabulary: Vocabulary, secrets: Secrets) -> Rows:
    """Read and encode the training and the held-out rows.

    Raises:
        LorarlError: they cannot be read, or none fits.
    """
    secret = secret_of(secrets, spec.data.credentials_secret)
    encoder = PromptEncoder(
        vocabulary.tokenizer, chat_template=spec.data.chat_template, stop_ids=vocabulary.stop_token_ids
    )
    warnings: list[str] = []

    def encoded(source: DataSource, field: str) -> list[EncodedRow]:
        fetch = partial(
            fetch_data, field=f"{field}.uri", secret=secret, open_folder=partial(open_store, field=f"{field}.uri")
        )
        answers = spec.reward is None or needs_answers(spec.reward)
        rows = read_rows(source, field=field, needs_answer=answers, fetch=fetch, hub_token=secret.get("HF_TOKEN"))
        longest = spec.rollout.max_prompt_tokens
        if spec.algorithm.type == "sft":
            most = spec.rollout.max_response_tokens
            fitting = encode_examples(rows, encoder, max_prompt_tokens=longest, max_response_tokens=most, field=field)
        else:
            fitting = encode_prompts(rows, encoder, max_prompt_tokens=longest, field=field)
        warnings.extend(_left_out(fitting, field, spec))
        return fitting.rows

    train = encoded(spec.data.train, "spec.data.train")
    held_out = encoded(spec.data.eval, "spec.data.eval") if spec.data.eval else []
    return Rows(train, held_out, warnings)


def first_adapter(spec: LoRARLJobSpec, secrets: Secrets, fingerprint: str) -> bytes | None:
    """Read and check the adapter of `spec.adapter.initFrom`, as the content of its safetensors file; None without one."""
    return read_first_adapter(spec, secret_of(secrets, spec.checkpoint.credentials_secret), fingerprint)


def base_model_name(spec: LoRARLJobSpec) -> str:
    """Return what PEFT and vLLM can load the base model by: the hub's name, the folder, or the URI of a store."""
    uri = spec.model.uri
    if uri.startswith("hf://"):
        return uri.removeprefix("hf://")
    return str(local_path(uri, "spec.model.uri").absolute()) if uri.startswith("file:") else uri


def check_checkpoints(job: LoRARLJob, secrets: Secrets, identity: Mapping[str, Any], unpublished: Path) -> None:
    """See early that the store can be reached and that what is there belongs to this training. Claims nothing.

    Raises:
        LorarlError: it cannot, or it does not.
    """
    if job.spec.checkpoint.resume == "Auto":
        store = open_checkpoints(job.spec, job.name, job.uid, secrets, identity)
        if (found := store.newest_told([unpublished])) is not None:
            require_same_training(found.manifest.identity, store.identity, found.uri)


def open_checkpoints(
    spec: LoRARLJobSpec, job_name: str, job_uid: str | None, secrets: Secrets, identity: Mapping[str, Any]
) -> CheckpointStore:
    """Return the job's checkpoints; nothing is read yet."""
    secret = secret_of(secrets, spec.checkpoint.credentials_secret)
    store = open_store(spec.checkpoint.uri, secret, field="spec.checkpoint.uri")
    return CheckpointStore(store, job_name, keep=spec.checkpoint.keep, identity=identity, job_uid=job_uid)


def identity(spec: LoRARLJobSpec, model_fingerprint: str) -> dict[str, Any]:
    """Return what makes this training what it is: model, adapter, algorithm, reward, data and seed.

    A checkpoint goes on only under the same; steps, learning rate, batch sizes, cluster and storage may change.
    """
    algorithm = spec.algorithm  # by what it means: a default that is written out later is no other training
    parts = {
        "model": {"uri": spec.model.uri, "revision": spec.model.revision, "fingerprint": model_fingerprint},
        "adapter": spec.adapter.model_dump(by_alias=True),
        "algorithm": {
            "type": algorithm.type,
            "groupSize": algorithm.effective_group_size,
            "clipRange": algorithm.effective_clip_range,
            "klCoefficient": algorithm.effective_kl_coefficient,
            "updatesPerStep": algorithm.effective_updates_per_step,
        },
        "reward": spec.reward.model_dump(by_alias=True, exclude={"timeout_seconds"}) if spec.reward else {},
        "data.train": spec.data.train.model_dump(by_alias=True),
        "data": {"chatTemplate": spec.data.chat_template},
        "trainer": {"seed": spec.trainer.seed},
    }
    return {
        f"{part}.{key}": value for part, values in parts.items() for key, value in values.items() if value is not None
    }


def fingerprint(folder: Path) -> str:
    """Return a digest of a model folder: its configuration, and size and first megabyte of each weights file."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for file in sorted(folder.glob("*.safetensors")):
        digest.update(f"{file.name}:{file.stat().st_size}:".encode())
        with file.open("rb") as weights:
            digest.update(weights.read(_HEAD_BYTES))
    return digest.hexdigest()


def _fetch_model(spec: LoRARLJobSpec, secrets: Secrets, *, weights: bool) -> Path:
    secret = secret_of(secrets, spec.model.credentials_secret)
    return fetch_model(
        spec.model, secret=secret, open_folder=partial(open_store, field="spec.model.uri"), weights=weights
    )


def _left_out(rows: EncodedRows, field: str, spec: LoRARLJobSpec) -> list[str]:
    total = len(rows.rows) + rows.long_prompts + rows.long_answers
    limits = (
        (rows.long_prompts, "prompts", "maxPromptTokens", spec.rollout.max_prompt_tokens),
        (rows.long_answers, "answers", "maxResponseTokens", spec.rollout.max_response_tokens),
    )
    return [
        f"{field}: {n} of {total} rows left out, their {what} have more than rollout.{name} ({limit}) tokens"
        for n, what, name, limit in limits
        if n
    ]
