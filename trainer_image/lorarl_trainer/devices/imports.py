"""Imports of torch, Megatron and vLLM: seven thousand modules, and a good part of every start."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_UNUSED = ("wandb",)
"""What Megatron imports where it is there, and no worker uses: a second of its own. (It is the driver that writes to W&B.)"""


@contextmanager
def quick_imports() -> Iterator[None]:
    """Let the imports within leave out what nobody uses, and be left alone by the garbage collector: a quarter of their time.

    It would go through a million objects that live as long as the process, again and again; afterwards, too, at every full collection
    (0.6 s on a CPU), of which vLLM's start asks for several. So they are taken out of its sight for good.
    """
    left_out = [name for name in _UNUSED if name not in sys.modules]
    sys.modules.update(dict.fromkeys(left_out))  # type: ignore[arg-type]  # None: Python's way to say that it cannot be imported
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
