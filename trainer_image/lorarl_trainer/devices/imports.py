"""Imports of torch, Megatron and vLLM: seven thousand modules, and a good part of every start."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_UNUSED = ("wandb",)
"""Packages that Megatron imports if they are installed, which takes a second. No worker uses W&B, only the driver."""


@contextmanager
def quick_imports() -> Iterator[None]:
    """Make the imports within the block a quarter faster: without unused packages, and without the garbage collector.

    The collector would go through a million objects that live as long as the process, again and again. It would also do
    so later, at every full collection (0.6 s on a CPU), and vLLM's start asks for several. So these objects are hidden
    from it permanently.
    """
    left_out = [name for name in _UNUSED if name not in sys.modules]
    sys.modules.update(dict.fromkeys(left_out))  # type: ignore[arg-type]  # None: it cannot be imported
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        for name in left_out:
            del sys.modules[name]
        gc.freeze()
        if enabled:
            gc.enable()
