"""The kernels of gated delta nets on a GPU: one configuration of each, in place of a search among up to 27.

Triton would compile and time all of them for the first prompt. On an H200 without Triton's cache that takes more than
three minutes of the start. The fastest differs from start to start, and so does its rounding.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def keep_first_configuration(kernels: Iterable[Any]) -> None:
    """Let each kernel's search end with its first configuration."""
    from triton.runtime.autotuner import Heuristics

    for kernel in kernels:
        search = kernel
        while isinstance(search, Heuristics):
            search = search.fn
        search.configs = search.configs[:1]
