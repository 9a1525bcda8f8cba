"""Publishes the record of a run in the background: with each checkpoint, now and then in between, and at the end."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from lorarl_trainer.errors import InputError, StorageError
from lorarl_trainer.progress import CheckpointDone, Event, RecordOpened, RunStarted, Warned
from lorarl_trainer.record.contents import TENSORBOARD_BYTES, RecordFile, record_files
from lorarl_trainer.record.folder import RecordFolder
from lorarl_trainer.storage import UPLOADS
from lorarl_trainer.threads import in_parallel

EVERY_SECONDS = 60.0
"""How often files that have changed are published while nothing else happens, for those who watch the run."""
MOST_PUBLISHING = 0.02
"""The share of a run's time in which its record is published between checkpoints."""
LAST_SECONDS = 15.0
"""How long the end of a run waits for its record: less than a pod's grace period."""
CLAIM_SECONDS = 3.0
"""The same where the store has not answered at all yet."""
RESTORE_SECONDS = 30.0
"""How long a run that resumes waits for the record's folder."""


class RecordPublisher:
    """Copies a run's files to its record. It is a sink of progress, in order to know when.

    Training never waits for it. A failure is a warning, and the next checkpoint brings the next try.
    """

    name = "record"

    def __init__(self, claim: Callable[[], RecordFolder], out_dir: Path, driver_log: Path | None) -> None:
        """Name the files. Nothing is sent before `start`.

        `driver_log`: the file that this process prints to, if there is one.
        """
        self._claim, self._out_dir, self._driver_log = claim, out_dir, driver_log
        self._changed = threading.Condition()
        self._due = self._closing = self._tried = False
        self._problem: str | None = None
        self._folder: Future[RecordFolder | None] = Future()
        self._published: dict[str, tuple[int, int]] = {}
        self._emit: Callable[[Event], None] = lambda _: None
        self._warned: set[str] = set()
        self._thread: threading.Thread | None = None

    def start(self, emit: Callable[[Event], None]) -> None:
        """Begin. `emit` takes warnings, and the URI of the record."""
        self._emit = emit
        # A daemon thread: an upload that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="record", daemon=True)
        self._thread.start()

    def on_event(self, event: Event) -> None:
        """Publish soon after the start and after each checkpoint."""
        if isinstance(event, RunStarted | CheckpointDone):
            self.publish_soon()

    def publish_soon(self) -> None:
        """Publish what has changed, as after a checkpoint."""
        with self._changed:
            self._due = True
            self._changed.notify_all()

    def close(self) -> None:
        """Do nothing: `finish` follows, once all files are written."""

    def restore(self) -> str | None:
        """Continue the curves of earlier starts: copy them into the run's folder, unless that has a run's files.

        Returns:
            A warning if that failed.
        """
        if (self._out_dir / "run_summary.json").exists():
            return None
        try:
            if (folder := self._folder.result(RESTORE_SECONDS)) is not None:
                folder.restore(self._out_dir)
        except (StorageError, OSError) as error:
            return f"the curves of earlier runs are not continued: {str(error) or 'the store did not answer in time'}"
        return None

    def finish(self, seconds: float = LAST_SECONDS) -> str | None:
        """Publish everything that has changed, and end.

        Returns:
            A warning if the record is not complete.
        """
        if self._thread is None:
            return None
        with self._changed:
            self._closing, self._emit = True, lambda _: None
            self._changed.notify_all()
        if not self._folder.done():
            seconds = min(seconds, CLAIM_SECONDS)
        self._thread.join(seconds)
        if self._thread.is_alive():
            return f"the record of this run is not complete: the store did not take it within {seconds:g} s"
        return self._problem

    def _run(self) -> None:
        began, closing = time.monotonic(), False
        while self._try() and not closing:
            pause = max(EVERY_SECONDS, (time.monotonic() - began) / MOST_PUBLISHING)
            closing = self._wait(pause)
            began = time.monotonic()

    def _wait(self, seconds: float) -> bool:
        """Wait until something is due. Returns whether the run is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._due or self._closing, seconds)
            self._due = False
            return self._closing

    def _try(self) -> bool:
        """Publish what has changed. Returns False if there is nothing more to do, ever."""
        self._problem = None
        try:
            if not self._folder.done():
                folder = self._claim()
                self._folder.set_result(folder)
                self._emit(RecordOpened(folder.uri))
            return self._publish(self._folder.result())
        except InputError:  # the run itself will be refused too, with this message
            self._folder.set_result(None)
            return False
        except Exception as error:  # noqa: BLE001 - whatever fails here must not stop training
            if self._tried:  # at first the run looks into the store too, and says what is wrong there
                self._warn(f"the record of this run could not be published, which is tried again: {error}")
            return True
        finally:
            self._tried = True

    def _publish(self, folder: RecordFolder | None) -> bool:
        if folder is None or not folder.is_ours():
            return False
        files = record_files(self._out_dir, self._driver_log)
        changed = [file for file in files if self._published.get(file.path) != (file.size, file.changed)]
        if not changed:
            return True
        sent: list[str] = []

        def send(file: RecordFile) -> None:
            if file.left_out:
                self._warn(f"{file.path} is not in the record of this run: it has over {TENSORBOARD_BYTES:,} bytes")
            else:
                with contextlib.suppress(FileNotFoundError):
                    data = file.read()
                    sent.append(file.path)
                    folder.put(file.path, data)
            self._published[file.path] = (file.size, file.changed)

        try:
            in_parallel(send, changed, UPLOADS)
        finally:
            ours = folder.take_back_if_deleted(sent)
        return ours

    def _warn(self, text: str) -> None:
        self._problem = text
        if text not in self._warned:
            self._warned.add(text)
            self._emit(Warned(text))
