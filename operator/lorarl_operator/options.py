"""Options of the command, made from the fields of dataclasses, so that each is written once.

A field is an option if its metadata are those of `decide.settings.option`. Its name and its default are the option's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any

import click


def options_of(*kinds: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command with the options of these dataclasses, in their order."""

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        for one in reversed([one for kind in kinds for one in _options(kind)]):
            command = _option(one)(command)
        return command

    return decorated


def chosen[T](kind: type[T], values: Mapping[str, Any]) -> T:
    """Make a dataclass of the values that click has read."""
    return kind(**{one.name: values[one.name] for one in _options(kind)})


def rows(kind: type) -> list[tuple[str, str, str]]:
    """The options of a dataclass for a table: the variable, the default, the meaning."""
    return [
        (f"`LORARL_{one.name.upper()}`", f"`{default}`" if (default := _default(one)) else "", one.metadata["help"])
        for one in _options(kind)
    ]


def _options(kind: Any) -> Iterator[Field[Any]]:
    return (one for one in fields(kind) if "help" in one.metadata)


def _default(one: Field[Any]) -> Any:
    return one.metadata.get("default", None if one.default is MISSING else one.default)


def _option(one: Field[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    about = dict(one.metadata)
    flag = about.pop("flag", f"--{one.name.replace('_', '-')}")
    least, choices, read = (about.pop(name, None) for name in ("least", "choices", "read"))
    if least is not None:
        about["type"] = click.IntRange(least, about.pop("most", None))
    if choices:
        about["type"] = click.Choice(choices)
    if read:
        about["callback"] = lambda _context, _option, value: _read(read, value)
    about |= {"default": _default(one), "required": one.default is MISSING}
    return click.option(flag, one.name, **about)


def _read(read: Callable[[str], Any], value: str) -> Any:
    try:
        return read(value)
    except ValueError as error:
        raise click.BadParameter(f"got {value!r}, {error}") from error
