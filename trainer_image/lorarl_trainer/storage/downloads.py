"""The base model and data files on this machine: downloaded once, however many processes ask, and never used half."""

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

from lorarl_api.v1alpha1 import CLAIMS_FOLDER, BaseModelSpec, claim_of
from lorarl_trainer.errors import InputError, LorarlError, StorageError, unreadable
from lorarl_trainer.storage.base import Entry

WEIGHTS = "*.safetensors"
MODEL_FILES = (WEIGHTS, "*.json", "*.jinja", "*.model", "*.tiktoken", "vocab.txt", "merges.txt")
"""What a model needs: weights, configuration, tokenizer. Training states, other formats and subfolders stay where they are."""
_LOCAL = ("file", "pvc")
REPEATED_WEIGHTS = "consolidated*.safetensors"
"""They hold the weights in another format."""
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
    """What is needed of a store; `storage.Store` is one."""

    def entries(self, prefix: str = "") -> Sequence[Entry]:
        """List everything under the folder `prefix`."""

    def find(self, path: str) -> Entry | None:
        """Look one object up; None where there is none."""

    def download_file(self, path: str, target: Path) -> None:
        """Copy one object to the file `target`."""


OpenFolder = Callable[[str, Mapping[str, str]], RemoteFolder]
"""Opens the store behind an s3://, gs:// or az:// URI with the keys of a Secret."""


def fetch_model(
    spec: BaseModelSpec, *, secret: Mapping[str, str], open_folder: OpenFolder, weights: bool = True
) -> Path:
    """Give the folder of the base model on this machine, or of all but its weights.

    hf:// goes through the hub's own cache, s3://, gs:// and az:// into $LORARL_CACHE/models; file: and pvc: are used in place. Of
    processes that ask at the same time one downloads and the others wait. A download that was killed goes on where it was.

    Args:
        spec: `spec.model`.
        secret: Keys and values of `spec.model.credentialsSecret`; empty when absent.
        open_folder: Opens remote stores.
        weights: Whether to download the weights too. Without them only configuration and tokenizer are sure to be in the folder.

    Raises:
        InputError: No such model, no access, a file that cannot be read, or the folder lacks configuration, weights or tokenizer. (That a
            model of the hub has no weights is seen when they are fetched.)
        LorarlError: There is no room for it.
        StorageError: The store could not be reached.
    """
    field = "spec.model.uri"
    scheme = spec.uri.partition(":")[0]
    known: set[str] | None = None  # names of the weights files
    if scheme == "hf":
        folder = _fetch_from_hub(spec, secret.get("HF_TOKEN"), weights)
    elif scheme in _LOCAL:
        folder = local_path(spec.uri, field)
    else:
        store = open_folder(spec.uri, secret)
        files = [file for file in store.entries() if _is_model_file(file.path)]
        if not files:
            hint = "Name the folder that holds config.json and the weights."
            raise InputError(
                field, f"{spec.uri}, where there is no model", "a folder with a model in Hugging Face format", hint
            )
        known = {file.path for file in files if fnmatch(file.path, WEIGHTS)}
        wanted = files if weights else [file for file in files if file.path not in known]
        folder = _download_once(cache_dir() / "models", spec.uri, store, wanted, field)
    try:
        if known is None and (weights or scheme in _LOCAL):
            known = _weights_in(folder)
        _check_model(folder, spec.uri, known)
    except OSError as error:
        raise unreadable(field, spec.uri, folder, error) from error
    return folder


def fetch_data(uri: str, *, field: str, secret: Mapping[str, str], open_folder: OpenFolder) -> Path:
    """Give a data file on this machine: file: and pvc: in place, s3://, gs:// and az:// from $LORARL_CACHE/data, downloaded once.

    Args:
        uri: URI of one file.
        field: The URI's path in the manifest, to name it in errors.
        secret: Keys and values of `spec.data.credentialsSecret`; empty when absent.
        open_folder: Opens remote stores.

    Raises:
        InputError: No such object. (That a local file exists is seen when it is read.)
        LorarlError: There is no room for it.
        StorageError: The store could not be reached.
    """
    if uri.partition(":")[0] in _LOCAL:
        return local_path(uri, field)
    folder, _, name = uri.rpartition("/")
    store = open_folder(folder, secret)
    file = store.find(name)
    if file is None:
        raise InputError(
            field, f"{uri}, which does not exist", "an object that can be read", "Mend the URI, or upload the file."
        )
    return _download_once(cache_dir() / "data", uri, store, [file], field) / name


def read_model_config(folder: Path) -> dict[str, Any]:
    """Read a model folder's config.json.

    Raises:
        InputError: It is missing, or no JSON object.
    """
    return _read_json(folder / "config.json")


def read_generation_config(folder: Path) -> dict[str, Any]:
    """Read a model folder's generation_config.json; empty where there is none.

    Raises:
        InputError: It is no JSON object.
    """
    path = folder / "generation_config.json"
    return _read_json(path) if path.exists() else {}


def cache_dir() -> Path:
    """Where downloads are kept: $LORARL_CACHE, or ~/.cache/lorarl."""
    return Path(os.environ.get("LORARL_CACHE") or Path.home() / ".cache" / "lorarl")


def local_path(uri: str, field: str) -> Path:
    """Give the path of file:///ABSOLUTE, file:RELATIVE (to the working directory) or pvc://CLAIM/PATH.

    Raises:
        InputError: There is a host between the slashes, or the claim is not mounted.
    """
    if claim := claim_of(uri):
        mounted = Path(CLAIMS_FOLDER) / claim
        if not mounted.is_dir():
            hint = "Outside a cluster name a folder of this machine: file:PATH."
            raise InputError(
                field, f"{uri}, which is not mounted", f"a PersistentVolumeClaim that is mounted at {mounted}", hint
            )
        return mounted / uri.removeprefix(f"pvc://{claim}").lstrip("/")
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


def _fetch_from_hub(spec: BaseModelSpec, token: str | None, weights: bool) -> Path:
    from httpx import HTTPError
    from huggingface_hub import snapshot_download  # takes most of a second, and only hf:// needs it
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    name = spec.uri.removeprefix("hf://")
    wanted = [pattern for pattern in MODEL_FILES if weights or pattern != WEIGHTS]
    try:
        return Path(
            snapshot_download(
                name, revision=spec.revision, token=token, allow_patterns=wanted, ignore_patterns=list(NOT_MODEL_FILES)
            )
        )
    except RevisionNotFoundError as error:
        raise InputError(
            "spec.model.revision",
            f"{spec.revision}, which {spec.uri} does not have",
            "a branch, tag or commit of the model",
            "Mend it.",
        ) from error
    except (GatedRepoError, RepositoryNotFoundError) as error:
        hint = "Mend the name; for a gated or private model accept its terms and put HF_TOKEN into spec.model.credentialsSecret."
        raise InputError(
            "spec.model.uri", f"{spec.uri}, which is not there for this token", "a model of the hub", hint
        ) from error
    except HFValidationError as error:
        raise InputError("spec.model.uri", spec.uri, "hf://ORG/NAME", "Mend the name.") from error
    except (
        HTTPError,
        OSError,
        ValueError,
        KeyError,
    ) as error:  # the latter where a login page answers in the hub's place
        hint = "Check the network (HF_ENDPOINT, proxies), or download the model and name its folder with file:."
        reason = (str(error).strip().splitlines() or [""])[0]
        raise InputError(
            "spec.model.uri", f"{spec.uri}, which could not be downloaded ({reason})", "a hub that answers", hint
        ) from error


def _download_once(cache: Path, uri: str, store: RemoteFolder, files: Sequence[Entry], field: str) -> Path:
    """Download files into a folder named after the URI and what is there now, so that a changed model is another folder."""
    listing = sorted((file.path, file.size, file.version) for file in files)
    digest = hashlib.sha256(json.dumps([uri, listing]).encode()).hexdigest()[:32]
    folder, partial = cache / digest, cache / f"{digest}.partial"
    try:
        with _locked(cache / f"{digest}.lock"):
            if not folder.exists():
                for file in files:
                    _download_file(store, file, partial / file.path)
                partial.rename(folder)  # whole or not there at all
    except (OSError, StorageError) as error:
        cause = (
            error.__cause__ if isinstance(error, StorageError) else error
        )  # a store tells of a copy that it could not write
        if not isinstance(cause, OSError) or cause.errno != errno.ENOSPC:
            raise
        need = sum(file.size for file in files)
        free = shutil.disk_usage(cache).free
        raise LorarlError(
            f"{field}: no space left for {uri} in {cache} of {socket.gethostname()} ({need:,} bytes are needed, {free:,} are free). "
            "Free some, or set LORARL_CACHE to another disk; in a cluster replace the volume `cache` by spec.cluster.podTemplateOverrides."
        ) from error
    return folder


def _download_file(store: RemoteFolder, file: Entry, target: Path) -> None:
    if target.exists():
        return  # whole: an earlier download was killed after this file
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f"{target.name}.unfinished")
    store.download_file(file.path, unfinished)
    if unfinished.stat().st_size != file.size:
        raise LorarlError(
            f"{file.path}: {unfinished.stat().st_size} bytes came, {file.size} were listed. It changed meanwhile; start again."
        )
    with unfinished.open("rb") as written:
        os.fsync(written.fileno())  # a rename may outlive a power cut that the content does not
    unfinished.rename(target)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that the kernel releases when the process ends, however it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _check_model(folder: Path, uri: str, weights: set[str] | None) -> None:
    """Refuse what is no whole model. `weights` are the weights files that there are; None where that is not known.

    Raises:
        InputError: a part is missing, or is no such thing.
        OSError: a part cannot be read.
    """
    field, expected = "spec.model.uri", "a folder with a model in Hugging Face format"
    if not folder.is_dir():
        raise InputError(field, f"{uri}, which is no folder", expected, f"Looked at {folder}.")
    _begin_to_read(
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
            "Put tokenizer.json and tokenizer_config.json beside config.json.",
        )


def _begin_to_read(files: Iterable[Path]) -> None:
    """Find out now what Megatron, vLLM or Transformers would stumble over later: the right to read each of the model's files."""
    for file in files:
        if _is_model_file(file.name):
            with file.open("rb") as content:
                content.read(1)


def _check_weights(folder: Path, uri: str, weights: set[str]) -> None:
    field, expected = "spec.model.uri", "a folder with a model in Hugging Face format"
    if not weights:
        hint = "Convert pytorch_model.bin with save_pretrained(safe_serialization=True)."
        raise InputError(field, f"{uri}, which has no *.safetensors weights", expected, hint)
    index = folder / "model.safetensors.index.json"
    if index.exists():
        listed = _read_json(index).get("weight_map")
        missing = sorted(set(listed.values()) - weights) if isinstance(listed, dict) else ["a weight_map in its index"]
        if missing:
            raise InputError(
                field,
                f"{uri}, which lacks {', '.join(missing)}",
                "all files of model.safetensors.index.json",
                "Copy it anew.",
            )


def _read_json(path: Path) -> dict[str, Any]:
    field, expected = "spec.model.uri", f"a model folder whose {path.name} is a JSON object"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(
            field, f"{path.parent}, which has no {path.name}", expected, "Name the folder that holds it."
        ) from error
    except (OSError, ValueError) as error:
        raise InputError(field, f"{path}, which cannot be read ({error})", expected, "Copy the model anew.") from error
    if not isinstance(content, dict):
        raise InputError(field, f"{path}, which is a JSON {type(content).__name__}", expected, "Copy the model anew.")
    return content
