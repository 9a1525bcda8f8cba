"""Object storage: s3, gs, az, mounted claims and plain folders behind one small interface.

store = open_store("s3://team/adapters", read_secret("s3-keys"))
store.put_if_absent("gsm8k/notes.txt", b"...")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from lorarl_api.v1alpha1.stores import FOLDERS
from lorarl_trainer.storage.base import UPLOADS, WRITE_CHECK, Data, Entry, Store, Tag
from lorarl_trainer.storage.local import LocalStore
from lorarl_trainer.storage.retries import RetryPolicy, usual_policy
from lorarl_trainer.storage.secrets import read_secret
from lorarl_trainer.storage.uri import StoreUri, parse_uri, redact

__all__ = [
    "UPLOADS",
    "WRITE_CHECK",
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
    uri: str,
    secret: Mapping[str, str] | None = None,
    *,
    field: str = "uri",
    retries: RetryPolicy | None = None,
    reread: Callable[[], Mapping[str, str]] | None = None,
) -> Store:
    """Return the store behind `uri`. Paths given to it are relative to that folder. No request is sent yet.

    Args:
        uri: s3://BUCKET/FOLDER, gs://BUCKET/FOLDER, az://CONTAINER/FOLDER, pvc://CLAIM/FOLDER, file:///FOLDER, or
            file:FOLDER (relative to the working directory).
        secret: the store's keys by their usual names (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, GOOGLE_SERVICE_ACCOUNT_KEY,
            AZURE_STORAGE_ACCOUNT_NAME, ...). Missing keys come from the process environment; but if the secret has
            credentials, none are taken from elsewhere.
        field: the manifest's field that names the URI, for error messages.
        retries: how long and how often to retry; ten minutes by default, or as `hasty_stores` says.
        reread: returns the secret as it is now. When the store refuses the keys, other keys are tried. An error of it
            is an InputError.

    Raises:
        InputError: the URI or the secret cannot be used.
    """
    parsed = parse_uri(uri, field)
    policy = retries or usual_policy()
    if parsed.scheme in FOLDERS:
        return LocalStore(Path(parsed.path), uri=parsed.text, lock_seconds=policy.deadline_seconds, field=field)
    # Imported here so that a process that uses only folders starts without the network library.
    from lorarl_trainer.storage.remote import RemoteStore

    return RemoteStore(parsed, secret or {}, policy, field, reread)
