"""Calls as a user like the one of a trainer's pod: root reads every file, so that no right is ever missing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

USER = 10001 if os.geteuid() == 0 else os.geteuid()
"""Not root; a process that is not root stays as it is."""


def as_a_user[T](function: Callable[..., T], *arguments: object) -> T:
    """Call a function in a process of `USER`'s; its result and what it raises come back."""
    # A fork has imported all that the function needs, wherever that lies.
    with ProcessPoolExecutor(1, get_context("fork"), initializer=os.setuid, initargs=(USER,)) as process:
        return process.submit(function, *arguments).result()


@contextmanager
def open_folder() -> Iterator[Path]:
    """A temporary folder that everybody can enter, unlike pytest's."""
    with tempfile.TemporaryDirectory(prefix="lorarl-test-") as folder:
        path = Path(folder)
        path.chmod(0o755)
        yield path
