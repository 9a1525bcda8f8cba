"""A plain folder as a store: atomic, durable, and correct between processes.

An object is staged in its folder under a hidden name, flushed to the disk, and renamed. Conditional writes compare and
rename under an flock of the store's lock file, so they are correct on local disks and on NFS.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from lorarl_trainer.errors import StorageError
from lorarl_trainer.storage.base import Data, Entry, Store, Tag, same_bytes

LOCK_NAME = ".lorarl.lock"
STAGED_SUFFIX = ".partial"
LOCK_POLL_SECONDS = 0.005
_STAGING = threading.Lock()


class LocalStore(Store):
    """The folder `root`, created when the first object is written."""

    def __init__(
        self, root: Path, uri: str | None = None, lock_seconds: float = 600.0, field: str | None = None
    ) -> None:
        """Open a folder; see `open_store`."""
        self.root = root
        self._field = f"{field}: " if field else ""
        self.uri = uri or f"file://{root.absolute()}"
        self.lock_seconds = lock_seconds

    def get_tagged(self, path: str) -> tuple[bytes, Tag] | None:
        data = self.get_large(path)
        return None if data is None else (data, _tag(data))

    def get_large(self, path: str) -> bytes | None:
        """See `Store`. A tag, which is not used here, would be a digest of it all."""
        with self._explaining_errors("read", path):
            try:
                return (self.root / path).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def put(self, path: str, data: Data) -> None:
        self._write(path, data, lambda: True)

    def upload_file(self, source: Path, path: str) -> None:
        self._write(path, source, lambda: True)

    def put_if_absent(self, path: str, data: Data) -> bool:
        target = self.root / path
        if self._write(path, data, lambda: not target.exists()):
            return True
        existing = self.get_large(path)
        return existing is not None and same_bytes(existing, data)

    def replace_if(self, path: str, data: bytes, tag: Tag | None) -> Tag | None:
        def unchanged() -> bool:
            found = self.get_tagged(path)
            return (None if found is None else found[1]) == tag

        return _tag(data) if self._write(path, data, unchanged) else None

    def entries(self, prefix: str = "") -> list[Entry]:
        found = []
        with self._explaining_errors("list", prefix):
            for folder, _, names in os.walk(self.root / prefix, onerror=_raise_unless_gone):
                for name in names:
                    file = Path(folder, name)
                    if not _is_internal(name):
                        with contextlib.suppress(FileNotFoundError):
                            found.append(self._entry(file))
        return sorted(found, key=lambda entry: entry.path)

    def entries_named(self, names: Collection[str], seen: Callable[[int], None] = lambda _: None) -> list[Entry]:
        found, wanted = [], frozenset(names)
        with self._explaining_errors("list", ""):
            for folder, _, there in os.walk(self.root, onerror=self._raise_for_the_root):
                seen(len(there))
                for name in wanted.intersection(there):
                    with contextlib.suppress(FileNotFoundError):
                        found.append(self._entry(Path(folder, name)))
        return found

    def end_of(self, entry: Entry, most_bytes: int) -> bytes | None:
        with self._explaining_errors("read", entry.path):
            try:
                with (self.root / entry.path).open("rb") as file:
                    file.seek(max(0, entry.size - most_bytes))
                    return file.read(most_bytes)
            except (FileNotFoundError, NotADirectoryError):
                return None

    def folders(self, prefix: str = "") -> list[str]:
        with self._explaining_errors("list", prefix):
            try:
                return sorted(child.name for child in (self.root / prefix).iterdir() if child.is_dir())
            except (FileNotFoundError, NotADirectoryError):
                return []

    def delete(self, paths: Sequence[str]) -> None:
        """See `Store`. Folders that are empty then are removed too."""
        for path in paths:
            with self._explaining_errors("delete", path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
                (self.root / path).unlink()
        parents = {parent for path in paths for parent in Path(path).parents} - {Path()}
        for folder in sorted(parents, key=lambda parent: len(parent.parts), reverse=True):
            # It may hold other files, or be gone.
            with contextlib.suppress(OSError), _STAGING:
                _sweep(self.root / folder)
                (self.root / folder).rmdir()

    def find(self, path: str) -> Entry | None:
        with self._explaining_errors("read", path), contextlib.suppress(FileNotFoundError):
            return self._entry(self.root / path)
        return None

    def download_file(self, path: str, target: Path, arrived: Callable[[int], None] = lambda _: None) -> None:
        """See `Store`. The file arrives in one part."""
        staged = target.with_name(f".{target.name}.{secrets.token_hex(4)}{STAGED_SUFFIX}")
        with self._explaining_errors("copy", path, folder=target.parent):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                shutil.copyfile(self.root / path, staged)
                arrived(staged.stat().st_size)
                staged.replace(target)
            finally:
                staged.unlink(missing_ok=True)

    def require_writable(self, prefix: str) -> None:
        """See `Store`. Nothing is written: the folder may not exist yet."""
        with self._explaining_errors("write", prefix):
            for folder in {self.root, self.root / prefix}:
                _require_writable(folder)

    def _raise_for_the_root(self, error: OSError) -> None:
        if Path(error.filename) == self.root:
            _raise_unless_gone(error)

    def _entry(self, file: Path) -> Entry:
        stat = file.stat()
        path = file.relative_to(self.root).as_posix()
        return Entry(path, stat.st_size, str(stat.st_mtime_ns), stat.st_mtime)

    def _write(self, path: str, data: Data | Path, wanted: Callable[[], bool]) -> bool:
        """Write `data`, or the content of the file `data`, to `path` if `wanted()` is true under the lock.

        Returns whether it was written.
        """
        target = self.root / path
        with self._explaining_errors("write", path, data.stat().st_size if isinstance(data, Path) else len(data)):
            for last in (False, False, False, True):
                try:
                    with _staged(target, data) as staged:
                        with self._locked():
                            if not wanted():
                                return False
                            staged.replace(target)
                        _flush_folders(target.parent, self.root)
                        return True
                except FileNotFoundError:
                    # Another process deleted the folder or the staged file between two of our steps.
                    if last:
                        raise
        return False

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        deadline = time.monotonic() + self.lock_seconds
        lock = self.root / LOCK_NAME
        with lock.open("a") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise StorageError(
                            f"{self.uri}: another process has held the lock {lock} for {self.lock_seconds:g} s. Stop "
                            "it."
                        ) from None
                    time.sleep(LOCK_POLL_SECONDS)
            yield

    @contextlib.contextmanager
    def _explaining_errors(
        self, operation: str, path: str, size: int = 0, folder: Path | None = None
    ) -> Iterator[None]:
        """Turn an error of the operating system into a StorageError that names the fix."""
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"{self._field}{self.uri_of(path)}: cannot {operation}: {_explain(error, folder or self.root, size)}"
            ) from error


def _tag(data: bytes) -> Tag:
    return Tag(hashlib.sha256(data).hexdigest())


def _is_internal(name: str) -> bool:
    return name == LOCK_NAME or (name.startswith(".") and name.endswith(STAGED_SUFFIX))


@contextlib.contextmanager
def _staged(target: Path, data: Data | Path) -> Iterator[Path]:
    """Yield a hidden file beside `target` with `data`, or with the content of the file `data`.

    It is removed afterwards unless it has been renamed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = target.with_name(f".{target.name}.{secrets.token_hex(4)}{STAGED_SUFFIX}")
    try:
        with contextlib.ExitStack() as stack:
            with _STAGING:  # otherwise another thread could sweep the file away before it is locked
                _sweep(target.parent)
                file = stack.enter_context(staged.open("xb"))
                # Locked while the writer lives: a killed writer's leftover is not locked.
                fcntl.flock(file, fcntl.LOCK_EX)
            if isinstance(data, Path):
                with data.open("rb") as source:
                    shutil.copyfileobj(source, file)
            else:
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
            yield staged
    finally:
        staged.unlink(missing_ok=True)


def _sweep(folder: Path) -> None:
    """Remove the staged files that killed writers left in `folder`."""
    for leftover in folder.glob(f".*{STAGED_SUFFIX}"):
        # Opened for writing, since NFSv4 locks no file that is open for reading only (EBADF). A file that is in use,
        # gone or another user's stays: it takes some space, and must not keep the caller from its own file.
        with contextlib.suppress(OSError), leftover.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            leftover.unlink()


def _flush_folders(folder: Path, root: Path) -> None:
    """Make a rename in `folder` survive a power cut, and so the folders up to `root`, which may be new."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        if folder == root or folder == folder.parent:
            return
        folder = folder.parent


def _require_writable(folder: Path) -> None:
    """Raise an OSError if a folder, or the first existing one above it, takes no files from this user."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(there))
    if os.statvfs(there).f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(there))
    if not os.access(there, os.W_OK | os.X_OK, effective_ids=True):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(there))


def _raise_unless_gone(error: BaseException) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _explain(error: OSError, folder: Path, size: int) -> str:
    path = error.filename or folder
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = free_bytes(folder)
        return (
            f"the disk is full: {size} bytes needed, {free} free. Free some space, or use another folder. "
            "Earlier files are whole."
        )
    if error.errno == errno.EROFS:
        return "the file system is read-only. Mount it writable, or use another folder."
    if error.errno in (errno.EACCES, errno.EPERM):
        return (
            f"permission denied for user {os.geteuid()} at {path}. Give that user permission to read and write there."
        )
    if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.EEXIST):
        return f"{path} is {'a' if error.errno == errno.EISDIR else 'not a'} folder. Use another folder."
    return f"{error.strerror or error} ({path})."


def free_bytes(folder: Path) -> int:
    """Return the free space where a folder is, or would be."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
