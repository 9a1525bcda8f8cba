"""Which of several adapters a worker trains. The others are in the host's memory, each with its optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lorarl_trainer.backends.backend import Backend, ParkedAdapter


class Parking:
    """See the file's description. Nothing else changes the adapter in the trainer.

    Attributes:
        present: the name of the adapter in the trainer; None if what is there is no one's.
    """

    def __init__(self, backend: Backend) -> None:
        """Take over a backend, whose adapter is no one's yet."""
        self._backend = backend
        self._parked: dict[str, ParkedAdapter] = {}
        self.present: str | None = None

    def bring(self, name: str) -> None:
        """Let the trainer have an adapter, with its optimizer and its gradients."""
        if self.present == name:
            return
        self._park()
        self._backend.take(self._parked.pop(name))
        self.present = name

    @contextmanager
    def making(self, name: str) -> Iterator[None]:
        """Let the block give the trainer an adapter of this name, in the place of one that has the name."""
        if self.present != name:
            self._park()
        yield
        self._parked.pop(name, None)
        self.present = name

    def forget(self, name: str) -> None:
        """Give back the memory of an adapter."""
        self._parked.pop(name, None)
        if self.present == name:
            self.present = None

    def _park(self) -> None:
        if self.present is not None:
            self._parked[self.present] = self._backend.parked()
            self.present = None
