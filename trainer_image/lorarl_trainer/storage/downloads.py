"""Fetches the base model and data files to this machine. Processes share one download; a partial one is never used."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Protocol

from lorarl_api.v1alpha1 import BaseModelSpec, claim_of
from lorarl_api.v1alpha1.stores import FOLDERS
from lorarl_trainer.errors import InputError, LorarlError, StorageError, unreadable
from lorarl_trainer.storage import hub
from lorarl_trainer.storage.base import Entry
from lorarl_trainer.storage.hints import missing_hint, no_config_hint, no_weights_hint
from lorarl_trainer.storage.meter import Meter, OnBytes, metered
from lorarl_trainer.storage.uri import claim_folder

WEIGHTS = "*.safetensors"
MODEL_FILES = (WEIGHTS, "*.json", "*.jinja", "*.model", "*.tiktoken", "vocab.txt", "merges.txt")
"""What a model needs: weights, configuration, tokenizer.

Training states, other formats and subfolders are not fetched.
"""
REPEATED_WEIGHTS = "consolidated*.safetensors"
"""The same weights in another format."""
NOT_MODEL_FILES = ("*/*", REPEATED_WEIGHTS)
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tekken.json",
    "vocab.json",
    "vocab.txt",
    "*.tiktoken",
    "spiece.model",
)


class RemoteFolder(Protocol):
    """The part of a store that downloads use. `storage.Store` implements it."""

    def entries(self, prefix: str = "") -> Sequence[Entry]:
        """List everything under the folder `prefix`."""

    def find(self, path: str) -> Entry | None:
        """Look up one object; None if there is none."""

    def download_file(self, path: str, target: Path, arrived: Callable[[int], None] = ...) -> None:
        """Copy one object to the file `target`, and report the size of each part that has arrived."""


OpenFolder = Callable[[str, Mapping[str, str]], RemoteFolder]
"""Opens the store behind an s3://, gs:// or az:// URI with a Secret's keys."""


def fetch_model(
    spec: BaseModelSpec,
    *,
    secret: Mapping[str, str],
    open_folder: OpenFolder,
    weights: bool = True,
    on_bytes: OnBytes | None = None,
) -> Path:
    """Return the base model's folder on this machine, with or without its weights.

    hf:// uses the hub's own cache; s3://, gs:// and az:// use $LORARL_CACHE/models; file: and pvc: are used in place.
    If several processes ask at the same time, one downloads and the others wait. A download that was killed is resumed.

    `secret`: keys and values of `spec.model.credentialsSecret`; empty if there is none. `weights`: whether to download
    the weights too. Without them only configuration and tokenizer are sure to be there.

    Raises:
        InputError: there is no such model, no access, a file that cannot be read, or the folder lacks configuration,
            weights or tokenizer. (That a model on the hub has no weights is found out only when they are fetched.)
        LorarlError: there is no space for it.
        StorageError: the store could not be reached.
    """
    field = "spec.model.uri"
    scheme = spec.uri.partition(":")[0]
    known: set[str] | None = None  # names of the weights files
    if scheme == "hf":
        patterns = [pattern for pattern in MODEL_FILES if weights or pattern != WEIGHTS]
        folder = hub.fetch_files(spec, patterns, NOT_MODEL_FILES, secret.get("HF_TOKEN"), on_bytes)
    elif scheme in FOLDERS:
        folder = local_path(spec.uri, field)
    else:
        store = open_folder(spec.uri, secret)
        files = [file for file in store.entries() if _is_model_file(file.path)]
        if not files:
            raise _no_model(spec.uri)
        known = {file.path for file in files if fnmatch(file.path, WEIGHTS)}
        wanted = files if weights else [file for file in files if file.path not in known]
        folder = _download_once(cache_dir() / "models", spec.uri, store, wanted, field, on_bytes)
    try:
        if known is None and (weights or scheme in FOLDERS):
            known = _weights_in(folder)
        _check_model(folder, spec.uri, known)
    except OSError as error:
        raise unreadable(field, spec.uri, folder, error) from error
    return folder


def fetch_model_config(spec: BaseModelSpec, *, secret: Mapping[str, str], open_folder: OpenFolder) -> dict[str, Any]:
    """Return the content of the base model's config.json; of a remote model, nothing else is downloaded.

    `secret`: keys and values of `spec.model.credentialsSecret`; empty if there is none.

    Raises:
        InputError: there is no such model, no access, or no config.json that can be read.
        StorageError: the hub or the store could not be reached.
    """
    field, name = "spec.model.uri", "config.json"
    scheme = spec.uri.partition(":")[0]
    if scheme == "hf":
        return _read_json(hub.fetch_file(spec, name, secret.get("HF_TOKEN")))
    if scheme in FOLDERS:
        folder = local_path(spec.uri, field)
        if not folder.is_dir():
            raise _not_a_folder(folder, spec.uri)
        return read_model_config(folder)
    store = open_folder(spec.uri, secret)
    found = store.find(name)
    if found is None:
        raise _no_model(spec.uri)
    return read_model_config(_download_once(cache_dir() / "models", spec.uri, store, [found], field))


def fetch_data(
    uri: str, *, field: str, secret: Mapping[str, str], open_folder: OpenFolder, on_bytes: OnBytes | None = None
) -> Path:
    """Return a data file's path on this machine.

    file: and pvc: are used in place; s3://, gs:// and az:// are downloaded once into $LORARL_CACHE/data.

    `secret`: keys and values of `spec.data.credentialsSecret`; empty if there is none.

    Raises:
        InputError: there is no such object. (Whether a local file exists is found out when it is read.)
        LorarlError: there is no space for it.
        StorageError: the store could not be reached.
    """
    if uri.partition(":")[0] in FOLDERS:
        return local_path(uri, field)
    folder, _, name = uri.rpartition("/")
    store = open_folder(folder, secret)
    file = store.find(name)
    if file is None:
        raise InputError(
            field, f"{uri}, which does not exist", "an object that can be read", "Fix the URI, or upload the file."
        )
    return _download_once(cache_dir() / "data", uri, store, [file], field, on_bytes) / name


def read_model_config(folder: Path) -> dict[str, Any]:
    """Read a model folder's config.json. Raises InputError if it is missing, or not a JSON object."""
    return _read_json(folder / "config.json")


def read_generation_config(folder: Path) -> dict[str, Any]:
    """Read a model folder's generation_config.json; an empty dictionary if there is none.

    Raises:
        InputError: it is not a JSON object.
    """
    path = folder / "generation_config.json"
    return _read_json(path) if path.exists() else {}


def cache_dir() -> Path:
    """Return the folder of downloads: $LORARL_CACHE, or ~/.cache/lorarl."""
    return Path(os.environ.get("LORARL_CACHE") or Path.home() / ".cache" / "lorarl")


def local_path(uri: str, field: str) -> Path:
    """Return the path of file:///ABSOLUTE, file:RELATIVE (to the working directory) or pvc://CLAIM/PATH.

    Raises:
        InputError: there is a host between the slashes, or the claim is not mounted.
    """
    if claim := claim_of(uri):
        return claim_folder(uri, claim, field) / uri.removeprefix(f"pvc://{claim}").lstrip("/")
    rest = uri.removeprefix("file:")
    if rest.startswith("//") and not rest.startswith("///"):
        hint = f"Write file:{rest[2:]} for a path relative to the working directory."
        raise InputError(field, uri, "file:///ABSOLUTE/PATH or file:RELATIVE/PATH", hint)
    return Path.cwd() / rest.removeprefix("//")


def _is_model_file(path: str) -> bool:
    return any(fnmatch(path, pattern) for pattern in MODEL_FILES) and not any(
        fnmatch(path, pattern) for pattern in NOT_MODEL_FILES
    )


def _weights_in(folder: Path) -> set[str]:
    return {path.name for path in folder.glob(WEIGHTS)}


def _no_model(uri: str) -> InputError:
    return InputError(
        "spec.model.uri",
        f"{uri}, which contains no model",
        "a folder with a model in Hugging Face format",
        "Name the folder that holds config.json and the weights.",
    )


def _not_a_folder(folder: Path, uri: str) -> InputError:
    return InputError(
        "spec.model.uri",
        f"{uri}, which is not a folder",
        "a folder with a model in Hugging Face format",
        missing_hint(folder),
    )


def _download_once(
    cache: Path, uri: str, store: RemoteFolder, files: Sequence[Entry], field: str, on_bytes: OnBytes | None = None
) -> Path:
    """Download files into a folder named after the URI and its listing: a changed model gets a new folder."""
    listing = sorted((file.path, file.size, file.version) for file in files)
    digest = hashlib.sha256(json.dumps([uri, listing]).encode()).hexdigest()[:32]
    folder, partial = cache / digest, cache / f"{digest}.partial"
    try:
        with _locked(cache / f"{digest}.lock"):
            if not folder.exists():
                with metered(on_bytes, uri, sum(file.size for file in files)) as meter:
                    for file in files:
                        _download_file(store, file, partial / file.path, meter)
                partial.rename(folder)  # the folder appears whole or not at all
    except (OSError, StorageError) as error:
        # A store reports a copy that it could not write as StorageError.
        cause = error.__cause__ if isinstance(error, StorageError) else error
        if not isinstance(cause, OSError) or cause.errno != errno.ENOSPC:
            raise
        need = sum(file.size for file in files)
        free = shutil.disk_usage(cache).free
        raise LorarlError(
            f"{field}: no space left for {uri} in {cache} on {socket.gethostname()} ({need:,} bytes are needed, "
            f"{free:,} are free). Free some space, or set LORARL_CACHE to a folder on another disk. In a cluster, "
            "replace the volume `cache` with spec.cluster.podTemplateOverrides."
        ) from error
    return folder


def _download_file(store: RemoteFolder, file: Entry, target: Path, meter: Meter) -> None:
    if target.exists():  # complete: an earlier download was killed after this file
        meter.add(file.size)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f"{target.name}.unfinished")
    store.download_file(file.path, unfinished, meter.add)
    if unfinished.stat().st_size != file.size:
        raise LorarlError(
            f"{file.path}: got {unfinished.stat().st_size} bytes, expected {file.size} as listed. "
            "It changed during the download. Start the job again."
        )
    with unfinished.open("rb") as written:
        os.fsync(written.fileno())  # otherwise the rename may survive a power cut that the content does not
    unfinished.rename(target)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that the kernel releases when the process ends in any way."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _check_model(folder: Path, uri: str, weights: set[str] | None) -> None:
    """Refuse an incomplete model. `weights` are the existing weights files; None if they are not known.

    Raises:
        InputError: a part is missing or invalid.
        OSError: a part cannot be read.
    """
    field, expected = "spec.model.uri", "a folder with a model in Hugging Face format"
    if not folder.is_dir():
        raise _not_a_folder(folder, uri)
    _check_readable(
        file for file in sorted(folder.iterdir()) if not fnmatch(file.name, WEIGHTS) or file.name in (weights or ())
    )
    read_model_config(folder)
    if weights is not None:
        _check_weights(folder, uri, weights)
    if not any(True for pattern in TOKENIZER_FILES for _ in folder.glob(pattern)):
        raise InputError(
            field,
            f"{uri}, which has no tokenizer",
            expected,
            "Put tokenizer.json and tokenizer_config.json into the folder of config.json.",
        )


def _check_readable(files: Iterable[Path]) -> None:
    """Check now that all of the model's files can be read: Megatron, vLLM or Transformers would fail on them later."""
    for file in files:
        if _is_model_file(file.name):
            with file.open("rb") as content:
                content.read(1)


def _check_weights(folder: Path, uri: str, weights: set[str]) -> None:
    field, expected = "spec.model.uri", "a folder with a model in Hugging Face format"
    if not weights:
        raise InputError(field, f"{uri}, which has no *.safetensors weights", expected, no_weights_hint(folder))
    index = folder / "model.safetensors.index.json"
    if index.exists():
        listed = _read_json(index).get("weight_map")
        missing = sorted(set(listed.values()) - weights) if isinstance(listed, dict) else ["weight_map in its index"]
        if missing:
            raise InputError(
                field,
                f"{uri}, which lacks {', '.join(missing)}",
                "all files listed in model.safetensors.index.json",
                "Copy the model again.",
            )


def _read_json(path: Path) -> dict[str, Any]:
    field, expected = "spec.model.uri", f"a model folder whose {path.name} is a JSON object"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(
            field,
            f"{path.parent}, which has no {path.name}",
            expected,
            no_config_hint(path.parent),
        ) from error
    except (OSError, ValueError) as error:
        raise InputError(field, f"{path}, which cannot be read ({error})", expected, "Copy the model again.") from error
    if not isinstance(content, dict):
        raise InputError(field, f"{path}, which is a JSON {type(content).__name__}", expected, "Copy the model again.")
    return content
