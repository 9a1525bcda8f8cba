"""Choosing between a plain PyTorch function and its kernel on a GPU. Nothing else in the backends asks which it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any


def with_kernel[**Arguments, Result](
    load: Callable[[], Callable[Arguments, Result]],
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Let a plain function's kernel take over if its first argument is on a GPU.

    Args:
        load: returns the kernel, which takes the same arguments. It is called once, on a GPU: a machine without one
            need not have the kernel's packages.
    """

    def decorate(plain: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        kernel = cache(load)

        @wraps(plain)
        def dispatched(*arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
            first: Any = arguments[0]
            return (kernel() if first.is_cuda else plain)(*arguments, **options)

        return dispatched

    return decorate
