"""Object storage: s3, gs, az and plain folders behind one small interface.

store = open_store("s3://team/adapters", read_secret("s3-keys"))
store.put_if_absent("gsm8k/notes.txt", b"...")
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lorarl_trainer.storage.base import UPLOADS, Data, Entry, Store, Tag
from lorarl_trainer.storage.local import LocalStore
from lorarl_trainer.storage.retries import RetryPolicy
from lorarl_trainer.storage.secrets import read_secret
from lorarl_trainer.storage.uri import StoreUri, parse_uri, redact

__all__ = [
    "UPLOADS",
    "Data",
    "Entry",
    "LocalStore",
    "RetryPolicy",
    "Store",
    "StoreUri",
    "Tag",
    "open_store",
    "parse_uri",
    "read_secret",
    "redact",
]


def open_store(
    uri: str, secret: Mapping[str, str] | None = None, *, field: str = "uri", retries: RetryPolicy | None = None
) -> Store:
    """The store behind `uri`; paths given to it are relative to that folder. Nothing is asked of the network yet.

    Args:
        uri: s3://BUCKET/FOLDER, gs://BUCKET/FOLDER, az://CONTAINER/FOLDER, file:///FOLDER, or file:FOLDER (relative to the working
            directory).
        secret: The store's keys by their usual names (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, GOOGLE_SERVICE_ACCOUNT_KEY,
            AZURE_STORAGE_ACCOUNT_NAME, ...). What it does not say comes from the process environment; but where it holds credentials,
            no credentials are taken from elsewhere.
        field: The manifest's field that named the URI, for error messages.
        retries: How long and how often to try again; ten minutes when absent.

    Raises:
        InputError: The URI or the secret cannot be used.
    """
    parsed = parse_uri(uri, field)
    policy = retries or RetryPolicy()
    if parsed.scheme == "file":
        return LocalStore(Path(parsed.path), uri=parsed.text, lock_seconds=policy.deadline_seconds)
    # Here and not above: what only writes to folders starts without the network library.
    from lorarl_trainer.storage.remote import RemoteStore

    return RemoteStore(parsed, secret or {}, policy, field)
