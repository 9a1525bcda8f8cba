"""Imports of torch, Megatron and vLLM: seven thousand modules, and a good part of every start."""

from __future__ import annotations

import functools
import gc
import importlib.metadata
import inspect
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import FunctionType, ModuleType
from typing import Any

_UNUSED = ("wandb", "sklearn")
"""Packages that Megatron and transformers import if they are installed, which takes a second each.

No worker uses W&B, only the driver. scikit-learn is in no image, but perhaps in a user's environment.
"""
_INDUCTOR = tuple(f"torch._inductor.{name}" for name in ("ir", "lowering", "virtualized"))
"""What vLLM fixes when it is imported."""


@contextmanager
def quick_imports() -> Iterator[None]:
    """Make the imports within the block a quarter faster: without unused packages, and without the garbage collector.

    transformers asks which packages are installed, and gets the answer of `packages_distributions` here.

    The collector would also go through the modules' million objects later, at every full collection (0.6 s on a CPU),
    and vLLM's start asks for several.
    """
    slower, importlib.metadata.packages_distributions = (
        importlib.metadata.packages_distributions,
        packages_distributions,
    )
    try:
        with without(*_UNUSED), lasting_objects():
            yield
    finally:
        importlib.metadata.packages_distributions = slower


def without(*modules: str) -> AbstractContextManager[None]:
    """Let a block fail to import modules that are not loaded yet: it does without packages that are not installed."""
    return _instead(modules, lambda _: None)


def packages_distributions() -> Mapping[str, list[str]]:
    """Return what `importlib.metadata.packages_distributions` does, without looking for each file of each package."""
    found: dict[str, list[str]] = defaultdict(list)
    for distribution in importlib.metadata.distributions():
        names = (distribution.read_text("top_level.txt") or "").split()
        if not names:
            files = (line.split(",", 1)[0] for line in (distribution.read_text("RECORD") or "").splitlines())
            names = sorted({_top_level(file) for file in files if file})
        name = distribution.metadata["Name"]
        for package in names:
            if "." not in package:
                found[package].append(name)
    return dict(found)


def _top_level(file: str) -> str:
    first, *rest = file.split("/")
    return first if rest else inspect.getmodulename(first) or first


@contextmanager
def lasting_objects() -> Iterator[None]:
    """Keep the garbage collector away from what the block makes, during the block and ever after.

    It would go through objects that live as long as the process again and again: a mixture of 48 layers with 128
    experts has a million of them.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


class _StandIn(ModuleType):
    """Until they are set, its classes are `Any`, which may be a base class or part of a type, and all else is None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Any if name[0].isupper() and not name.isupper() else None


def stand_ins(*modules: str) -> AbstractContextManager[None]:
    """Let a block import something empty in place of modules that are not loaded yet: it calls nothing of theirs."""
    return _instead(modules, _StandIn)


@contextmanager
def _instead(modules: Iterable[str], made: Callable[[str], ModuleType | None]) -> Iterator[None]:
    added = [name for name in modules if name not in sys.modules]
    sys.modules.update({name: made(name) for name in added})  # type: ignore[misc]  # None: it cannot be imported
    try:
        yield
    finally:
        for name in added:
            del sys.modules[name]


@contextmanager
def compile_at_first_call() -> Iterator[None]:
    """Let functions that the block passes to `torch.compile` wait for their first call.

    Megatron decorates forty functions so when it is imported, and vLLM a few. The first of them would load
    TorchInductor, which takes seconds; a LoRA trainer and a rollout call few of them or none.
    """
    import torch

    compile_now = torch.compile
    torch.compile = functools.partial(_compile_later, compile_now)
    try:
        yield
    finally:
        torch.compile = compile_now


@contextmanager
def import_without_compiler() -> Iterator[None]:
    """Let the block import vLLM, but not TorchInductor, which vLLM patches for models that it compiles."""
    with compile_at_first_call(), stand_ins(*_INDUCTOR):
        yield


def _compile_later(compile_now: Callable[..., Any], model: Any = None, **options: Any) -> Any:
    """Stand in for `torch.compile`: as a function, or as a decorator with options."""
    import torch

    if model is None:
        return functools.partial(_compile_later, compile_now, **options)
    if not isinstance(model, FunctionType):
        return compile_now(model, **options)
    compiled = functools.cache(lambda: compile_now(model, **options))

    @functools.wraps(model)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # a compiled function calls this one, which becomes part of it
            return model(*args, **kwargs)
        return compiled()(*args, **kwargs)

    return call
