"""s3, gs and az through obstore.

Retries are made here and not by obstore. Its own retries do not repeat a conditional write that timed out, and they
report a conditional write as lost when only its answer was lost (tests/storage/test_remote_faults.py shows both).
obstore keeps two quick retries for its requests for credentials, which we do not see.
"""

from __future__ import annotations

import math
import os
import secrets
import threading
from collections.abc import Buffer, Callable, Collection, Mapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from lorarl_trainer.errors import InputError, StorageError
from lorarl_trainer.storage.base import UPLOADS, Data, Entry, Store, Tag, same_bytes
from lorarl_trainer.storage.credentials import client_for, endpoint_of
from lorarl_trainer.storage.keys_origin import origin_of_keys
from lorarl_trainer.storage.retries import RetryPolicy, read_answer
from lorarl_trainer.storage.uri import StoreUri
from lorarl_trainer.threads import in_parallel

if TYPE_CHECKING:
    from obstore import GetResult, ObjectMeta, PutMode, PutResult
    from obstore.store import ObjectStore

CHUNK_BYTES = 32 * 1024 * 1024
MAX_OBJECT_BYTES = 5 * 1024**3
"""S3's limit per request. A conditional write is one request."""
MAX_PARTS = 10_000
"""S3's limit per object."""
DOWNLOAD_THREADS = 8
PAGE = 1000
"""Objects of a listing at a time: as many as a request returns."""


class WriteConflictError(Exception):
    """A conditional write was refused though no one had written: another was under way, or the object just deleted."""


STORE_ERRORS = (BaseError, FileNotFoundError, WriteConflictError)


class RemoteStore(Store):
    """A folder of a bucket. Safe to use from several threads."""

    def __init__(
        self,
        uri: StoreUri,
        secret: Mapping[str, str],
        retries: RetryPolicy,
        field: str,
        reread: Callable[[], Mapping[str, str]] | None = None,
    ) -> None:
        """Check the form of the credentials. See `open_store`."""
        self.uri, self._field = uri.text, field
        self.retries = retries
        self._parsed, self._bucket = uri, uri.bucket
        self._reread, self._renewal = reread, threading.Lock()
        self._connect(secret)

    def _connect(self, secret: Mapping[str, str]) -> None:
        """Make the clients for these keys."""
        uri, field, retries = self._parsed, self._field, self.retries
        self._endpoint = endpoint_of(uri, secret)
        seconds, rate = retries.request_seconds, retries.bytes_per_second
        # All parallel requests share a slow line.
        self._reader = client_for(
            uri, secret, seconds + DOWNLOAD_THREADS * CHUNK_BYTES / rate, field, stall_seconds=seconds
        )
        self._writer_for = lru_cache(maxsize=None)(
            lambda power: client_for(uri, secret, seconds + UPLOADS * 2**power / rate, field)
        )
        self._secret = secret  # last: a thread that sees these keys also sees their clients

    def get_tagged(self, path: str) -> tuple[bytes, Tag] | None:
        found = self._begun(path)
        if found is None:
            return None
        data, result = found
        size, e_tag = result.meta["size"], result.meta["e_tag"]
        if data is None:
            data = b"".join(in_parallel(lambda span: self._chunk(path, *span, e_tag), _spans(size), DOWNLOAD_THREADS))
        return data, Tag(e_tag, result.meta["version"])

    def get_large(self, path: str) -> Data | None:
        """See `Store`. NumPy copies without the interpreter's lock."""
        found = self._begun(path)
        if found is None:
            return None
        data, result = found
        if data is not None:
            return data
        import numpy as np  # the kubectl plugin, which reads no large objects, does without it

        meta = result.meta
        content = np.empty(meta["size"], np.uint8)

        def fetch(span: tuple[int, int]) -> None:
            content[slice(*span)] = np.frombuffer(self._chunk(path, *span, meta["e_tag"]), np.uint8)

        in_parallel(fetch, _spans(meta["size"]), DOWNLOAD_THREADS)
        return memoryview(content).toreadonly()

    def put(self, path: str, data: Data) -> None:
        self._ask("write", path, lambda: self._put(path, data, "overwrite"))

    def put_if_absent(self, path: str, data: Data) -> bool:
        def attempt() -> bool:
            try:
                self._put(path, data, "create")
            except (AlreadyExistsError, PreconditionError) as error:
                holds = self._holds(path, data)
                if holds is None:
                    raise WriteConflictError(*error.args) from None
                return holds
            except BaseError as error:
                if read_answer(error).unanswered and self._is_there(path):
                    return self._holds(path, data) is True
                raise
            return True

        return self._ask("write", path, attempt)

    def replace_if(self, path: str, data: bytes, tag: Tag | None) -> Tag | None:
        def attempt() -> Tag | None:
            try:
                written = self._put(path, data, "create" if tag is None else _update(tag))
            except (AlreadyExistsError, PreconditionError) as error:
                existing = self.get_tagged(path)
                if existing is not None and existing[0] == data:
                    return existing[1]
                if (None if existing is None else existing[1]) == tag:
                    raise WriteConflictError(*error.args) from None
                return None
            return Tag(written["e_tag"], written["version"])

        return self._ask("write", path, attempt)

    def entries(self, prefix: str = "") -> list[Entry]:
        found = self._ask("list", prefix, lambda: obstore.list(self._reader, prefix or None).collect())
        return sorted((_entry(item) for item in found), key=lambda entry: entry.path)

    def entries_named(self, names: Collection[str], seen: Callable[[int], None] = lambda _: None) -> list[Entry]:
        wanted = frozenset(names)

        def attempt() -> list[Entry]:
            found = []
            for page in obstore.list(self._reader, chunk_size=PAGE):
                seen(len(page))
                found += [_entry(item) for item in page if item["path"].rpartition("/")[2] in wanted]
            return found

        return self._ask("list", "", attempt)

    def end_of(self, entry: Entry, most_bytes: int) -> bytes | None:
        if entry.size <= most_bytes:
            return self.get(entry.path)

        def attempt() -> bytes | None:
            span = (entry.size - most_bytes, entry.size)
            try:
                return bytes(obstore.get(self._reader, entry.path, options={"range": span}).bytes())
            except STORE_ERRORS as error:
                answer = read_answer(error)
                if answer.absent:
                    return None
                if answer.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:  # it has become shorter
                    return self.get(entry.path)
                raise

        return self._ask("read", entry.path, attempt)

    def find(self, path: str) -> Entry | None:
        meta = self._meta(path)
        return None if meta is None else _entry(meta)

    def folders(self, prefix: str = "") -> list[str]:
        found = self._ask("list", prefix, lambda: obstore.list_with_delimiter(self._reader, prefix or None))
        return sorted(path.rstrip("/").rsplit("/", 1)[-1] for path in found["common_prefixes"])

    def delete(self, paths: Sequence[str]) -> None:
        if paths:
            self._ask("delete", os.path.commonpath(paths), lambda: obstore.delete(self._reader, paths))

    def upload_file(self, source: Path, path: str) -> None:
        """See `Store`. Parts are sent in parallel. An upload that breaks off leaves nothing visible."""
        size = source.stat().st_size
        if size <= CHUNK_BYTES:
            self.put(path, source.read_bytes())
            return
        part = max(CHUNK_BYTES, math.ceil(size / MAX_PARTS))

        def attempt() -> None:
            with source.open("rb") as file:
                obstore.put(self._writer(part), path, file, chunk_size=part, max_concurrency=UPLOADS)

        self._ask("write", path, attempt)

    def download_file(self, path: str, target: Path, arrived: Callable[[int], None] = lambda _: None) -> None:
        """See `Store`. Chunks of one version are fetched in parallel into a staged file."""
        staged = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            meta = self._ask("read", path, lambda: obstore.head(self._reader, path))
            with staged.open("xb") as file:
                descriptor = file.fileno()

                def fetch(span: tuple[int, int]) -> None:
                    _write(descriptor, self._chunk(path, *span, meta["e_tag"]), span[0])
                    arrived(span[1] - span[0])

                in_parallel(fetch, _spans(meta["size"]), DOWNLOAD_THREADS)
            staged.replace(target)
        except OSError as error:
            raise StorageError(f"{self.uri_of(path)}: cannot write the copy {target}: {error.strerror}.") from error
        finally:
            staged.unlink(missing_ok=True)

    def _is_there(self, path: str) -> bool:
        """Look once for an object whose conditional write got no answer.

        A store may refuse one before it has read all of it, and close the connection. While the client is still
        sending, it then sees a broken connection, however often it tries again.
        """
        try:
            obstore.head(self._reader, path)
        except STORE_ERRORS:
            return False
        return True

    def _begun(self, path: str) -> tuple[bytes | None, GetResult] | None:
        """Return an object's bytes, or None in their place if they are many; None if there is no object."""

        def attempt() -> tuple[bytes | None, GetResult] | None:
            try:
                found = obstore.get(self._reader, path)
                return (bytes(found.bytes()) if found.meta["size"] <= CHUNK_BYTES else None), found
            except FileNotFoundError as error:
                if read_answer(error).absent:
                    return None
                raise

        return self._ask("read", path, attempt)

    def _meta(self, path: str) -> ObjectMeta | None:
        def attempt() -> ObjectMeta | None:
            try:
                return obstore.head(self._reader, path)
            except FileNotFoundError:
                return None

        return self._ask("read", path, attempt)

    def _holds(self, path: str, data: Data) -> bool | None:
        """Return whether the object has these bytes; None if there is no object."""
        meta = self._meta(path)
        if meta is None:
            return None

        def same(span: tuple[int, int]) -> bool:
            return same_bytes(self._chunk(path, *span, meta["e_tag"]), memoryview(data)[slice(*span)])

        return meta["size"] == len(data) and all(in_parallel(same, _spans(meta["size"]), DOWNLOAD_THREADS))

    def _chunk(self, path: str, start: int, end: int, e_tag: str | None) -> obstore.Bytes:
        def attempt() -> obstore.Bytes:
            return obstore.get(self._reader, path, options={"range": (start, end), "if_match": e_tag}).bytes()

        return self._ask("read", path, attempt)

    def _put(self, path: str, data: Data, mode: PutMode) -> PutResult:
        if len(data) > MAX_OBJECT_BYTES:
            message = (
                f"{self.uri_of(path)}: got {len(data)} bytes for one object, expected at most {MAX_OBJECT_BYTES}. "
                "Lower spec.adapter.rank, or name fewer spec.adapter.targetModules."
            )
            raise StorageError(message)
        return obstore.put(self._writer(len(data)), path, data, mode=mode, use_multipart=False)

    def _ask[Result](self, operation: str, path: str, attempt: Callable[[], Result]) -> Result:
        """Make one request, and repeat it while that may help."""
        used = self._secret
        try:
            return self.retries.call(attempt, _transient, reading=operation in ("read", "list"))
        except STORE_ERRORS as error:
            answer = read_answer(error)
            if answer.refuses_the_keys and self._has_other_keys(used):
                return self._ask(operation, path, attempt)
            origin = origin_of_keys(self._parsed.scheme, self._secret, os.environ)
            hint = answer.hint(self._bucket, self._endpoint, origin)
            raise StorageError(
                f"{self._field}: {self.uri_of(path)}: cannot {operation}: the store said: {answer}. {hint}"
            ) from None

    def _has_other_keys(self, used: Mapping[str, str]) -> bool:
        """Whether the Secret has changed since a request that used these keys. Its new keys are in use then."""
        with self._renewal:
            if self._secret != used:
                return True  # another thread has renewed them
            if self._reread is None:
                return False
            try:
                secret = self._reread()
                if secret != used:
                    self._connect(secret)
            except InputError:
                return False  # the store's refusal says more than a file that is being replaced
            return secret != used

    def _writer(self, nbytes: int) -> ObjectStore:
        """Return a client whose time limit suits `nbytes`.

        In obstore a limit belongs to a client: one per power of two.
        """
        return self._writer_for(nbytes.bit_length())


def _entry(meta: ObjectMeta) -> Entry:
    changed = meta["last_modified"]
    return Entry(meta["path"], meta["size"], meta["e_tag"] or changed.isoformat(), changed.timestamp())


def _transient(error: BaseException) -> bool:
    return isinstance(error, WriteConflictError) or (isinstance(error, STORE_ERRORS) and read_answer(error).transient)


def _update(tag: Tag) -> PutMode:
    return {"e_tag": tag.e_tag} if tag.version is None else {"e_tag": tag.e_tag, "version": tag.version}


def _write(descriptor: int, data: Buffer, position: int) -> None:
    """Write all of `data`. A nearly full disk takes only a part, and fails only when the rest is written."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, position)
        rest, position = rest[written:], position + written


def _spans(size: int) -> list[tuple[int, int]]:
    return [(start, min(start + CHUNK_BYTES, size)) for start in range(0, size, CHUNK_BYTES)]
