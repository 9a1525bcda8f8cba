"""An event loop whose clock jumps: a minute's wait takes no time, and the order of things is that of the real clock."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


class _JumpingSelector(selectors.DefaultSelector):
    """When nothing is ready, the time to the next timer has passed at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready:
            return ready
        assert timeout is not None, "nothing is left to wait for: this test would hang for ever"
        self.now += max(0.0, timeout)
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run[T](main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time, which begins at 0."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(main)


def now() -> float:
    """Seconds on the running loop's clock."""
    return asyncio.get_running_loop().time()
