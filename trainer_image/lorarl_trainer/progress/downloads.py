"""Downloads as events of a run, and as bars of a command that has no run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from lorarl_trainer.progress.console import is_terminal
from lorarl_trainer.progress.events import Downloading, Noted
from lorarl_trainer.progress.fanout import Progress
from lorarl_trainer.progress.start_bar import StartBar, size_text
from lorarl_trainer.storage.meter import OnBytes

LEAST_BYTES = 5_000_000
"""Smaller downloads are not shown: they are over before one could read it."""


def downloads_to(progress: Progress) -> OnBytes:
    """Return what reports downloads to the sinks of a run: a line for each, and its progress."""
    known: set[str] = set()

    def on_bytes(what: str, done: int, total: int) -> None:
        if total < LEAST_BYTES:
            return
        if what not in known:
            known.add(what)
            progress.emit(Noted(f"downloading {what}, {size_text(total)}"))
        progress.emit(Downloading(what, done, total))

    return on_bytes


@contextmanager
def show_downloads(stream: TextIO) -> Iterator[OnBytes | None]:
    """Show downloads as bars while a block runs; None where there is no terminal to show them on."""
    if not is_terminal(stream):
        yield None
        return
    bar: StartBar | None = None

    def on_bytes(what: str, done: int, total: int) -> None:
        nonlocal bar
        if total >= LEAST_BYTES:
            bar = bar or StartBar(stream)
            bar.download(Downloading(what, done, total))

    try:
        yield on_bytes
    finally:
        if bar is not None:
            bar.progress.stop()
