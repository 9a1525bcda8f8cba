"""Publication in the background: training continues while the previous checkpoint is uploaded."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lorarl_trainer.checkpoint.contents import Checkpoint, Manifest, folder_name
from lorarl_trainer.checkpoint.folders import write_folder
from lorarl_trainer.checkpoint.latest import NAME, Best
from lorarl_trainer.checkpoint.store import CheckpointStore, Published
from lorarl_trainer.errors import LorarlError, StorageError
from lorarl_trainer.storage import LocalStore


@dataclass(frozen=True)
class Evaluated:
    """What an evaluation adds to its step's checkpoint: see `CheckpointStore.complete`."""

    step: int
    card: bytes | None
    value: float | None


class BackgroundUploader:
    """Publishes checkpoints in one thread. One is under way and one waits; a newer one replaces the one that waits.

    If the job keeps its best checkpoint, none is replaced, since it may be that one: `submit` waits for its turn.

    The first failure ends it: the newest unpublished checkpoint is written to `unpublished`, a folder that a later run
    gives to `CheckpointStore.start`. From then on `raise_if_failed`, `submit` and `drain` raise. Call `drain` before
    the process ends.
    """

    def __init__(
        self, store: CheckpointStore, unpublished: Path, on_published: Callable[[Published], None] | None = None
    ) -> None:
        """`store` has been started, and only this thread may use it from now on.

        `on_published` is called in this thread.
        """
        self._store, self._unpublished, self._on_published = store, unpublished, on_published
        self._changed = threading.Condition()
        self._waiting: Checkpoint | None = None
        self._evaluated: list[Evaluated] = []
        self._busy = False
        self._best = store.best
        self._under_way: Checkpoint | None = None
        self._failure: BaseException | None = None
        self._closed = False
        # A daemon thread: an upload that hangs must not keep the process from ending. `drain` waits for it.
        threading.Thread(target=self._run, name="checkpoint-upload", daemon=True).start()

    def submit(self, checkpoint: Checkpoint) -> None:
        """Publish `checkpoint` soon. Returns at once, unless the job keeps its best checkpoint and another one waits.

        Raises:
            FencedError, StorageError: an earlier publication failed.
        """
        with self._changed:
            if self._store.keeps_best:
                self._changed.wait_for(lambda: self._waiting is None or self._failure is not None)
            self._raise_failure()
            self._waiting = checkpoint
            self._changed.notify_all()

    def complete(self, evaluated: Evaluated) -> None:
        """Add an evaluation's results to the checkpoint of its step when that is published. Returns at once.

        Raises:
            FencedError, StorageError: an earlier publication failed.
        """
        with self._changed:
            self._raise_failure()
            self._evaluated.append(evaluated)
            self._changed.notify_all()

    @property
    def best(self) -> Best | None:
        """The best checkpoint of this training so far."""
        with self._changed:
            return self._best

    def raise_if_failed(self) -> None:
        """Raise the error that ended the uploads, if any. It is cheap: call it every step."""
        with self._changed:
            self._raise_failure()

    def drain(self, timeout: float) -> None:
        """Wait until everything submitted is published, and the results of all evaluations are recorded.

        If it raises, the upload thread may still be in the store, so nothing else may use that.

        Args:
            timeout: in seconds. After it the newest unpublished checkpoint is written to the local folder.

        Raises:
            FencedError, StorageError: a publication failed, or did not end in time.
        """
        with self._changed:
            ended = self._changed.wait_for(
                lambda: self._failure is not None or not (self._waiting or self._evaluated or self._busy), timeout
            )
            if not ended:
                self._failure = self._unfinished(timeout)
            self._raise_failure()

    def close(self) -> None:
        """Let the thread end when everything is published. Nothing is submitted any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _unfinished(self, seconds: float) -> LorarlError:
        """Keep the newest checkpoint that is not published. Return an error that says what is missing in the store."""
        unsent, self._waiting = self._waiting or self._under_way, None
        if unsent is not None:
            return self._kept_locally(unsent, f"the upload did not end within {seconds:g} s.")
        best = f", and {NAME} may not name the best one" if self._store.keeps_best else ""
        return StorageError(
            f"{self._store.uri}: the results of the last evaluation were not recorded within {seconds:g} s. All "
            f"checkpoints are published, but a model card may lack results{best}. Check the store, then start the "
            "same job again."
        )

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None or self._evaluated or self._closed)
                checkpoint, self._waiting = self._waiting, None
                evaluated, self._evaluated = self._evaluated, []
                if self._failure is not None or not (checkpoint or evaluated):
                    return
                self._under_way, self._busy = checkpoint, True
                self._changed.notify_all()
            # What is known of earlier steps comes first: a new checkpoint lets go of those that are not the best.
            own = checkpoint.step if checkpoint else 0
            failure = self._complete([one for one in evaluated if one.step != own])
            failure = failure or (self._publish(checkpoint) if checkpoint else None)
            unsent = checkpoint if failure else None
            failure = failure or self._complete([one for one in evaluated if one.step == own])
            with self._changed:
                if isinstance(failure, StorageError) and self._failure is None and (unsent := self._waiting or unsent):
                    failure = self._kept_locally(unsent, str(failure))
                self._failure = self._failure or failure
                self._under_way, self._busy, self._best = None, False, self._store.best
                self._changed.notify_all()
                if self._failure is not None:
                    return

    def _publish(self, checkpoint: Checkpoint) -> BaseException | None:
        try:
            published = self._store.publish(checkpoint)
            with self._changed:
                # What follows in this thread, its evaluation, must not count as an upload that hangs.
                self._under_way = None
            if self._on_published is not None:
                self._on_published(published)
        except BaseException as error:  # noqa: BLE001 - raised in the loop's thread
            return error
        return None

    def _complete(self, evaluated: list[Evaluated]) -> BaseException | None:
        try:
            for one in evaluated:
                self._store.complete(one.step, one.card, one.value)
        except BaseException as error:  # noqa: BLE001 - raised in the loop's thread
            return error
        return None

    def _kept_locally(self, checkpoint: Checkpoint, reason: str) -> LorarlError:
        """Write the checkpoint to the local folder. Return an error that says what happened and how to continue."""
        try:
            folder = save_unpublished(checkpoint, self._store, self._unpublished)
        except StorageError as error:
            return StorageError(
                f"The checkpoint of step {checkpoint.step} is lost: {reason} It could not be kept on this machine "
                f"either: {error}"
            )
        return StorageError(
            f"The checkpoint of step {checkpoint.step} could not be published: {reason} It is kept in {folder}, its "
            f"adapter in {folder / 'lora_adapter'}. When the store works again, start the same job on this machine to "
            "resume from it."
        )


def save_unpublished(checkpoint: Checkpoint, store: CheckpointStore, unpublished: Path) -> Path:
    """Write `checkpoint` as a folder under `unpublished`, in the store's layout. Returns that folder.

    Raises:
        StorageError: it cannot be written there.
    """
    local = LocalStore(unpublished)
    manifest = Manifest.of(checkpoint, store.job, store.epoch, store.time(), store.identity, kept_from=store.uri)
    folder = folder_name(checkpoint.step)
    if not write_folder(local, folder, checkpoint, manifest):
        folder = folder_name(checkpoint.step, secrets.token_hex(4))
        write_folder(local, folder, checkpoint, manifest)
    return unpublished / folder
