"""`lorarl upload`: copies a base model or data to where a cluster's pods find them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from lorarl_trainer.errors import InputError
from lorarl_trainer.storage import open_store
from lorarl_trainer.storage.secrets import read_secret


def upload(sources: Sequence[Path], uri: str, secret: str | None) -> Iterator[str]:
    """Copy files and folders into the folder `uri`, each under its own name; yield the URI of each file that is there.

    Args:
        sources: what to copy; a folder with all that is in it.
        uri: s3://, gs://, az:// or file:.
        secret: name of a Secret with the store's keys, as `credentialsSecret` in a manifest; the environment's when None.

    Raises:
        InputError: a source is not there, or the URI or the Secret cannot be used.
        StorageError: the store refuses, or cannot be reached.
    """
    store = open_store(uri, read_secret(secret, "--secret") if secret else {}, field="URI")
    for source in sources:
        if not source.exists():
            raise InputError("SOURCE", f"{source}, which does not exist", "a file or a folder", "Check the path.")
        folder = source.resolve()
        files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else [folder]
        for file in files:
            path = file.relative_to(folder.parent).as_posix()
            store.put(path, file.read_bytes())
            yield store.uri_of(path)
