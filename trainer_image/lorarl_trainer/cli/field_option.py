"""Options in the place of a field of the manifest: `--set` of that field beside one is refused, for one would lose."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click

from lorarl_trainer.errors import InputError


class FieldOption(click.Option):
    """An option that decides what fields of the manifest decide without it.

    Attributes:
        fields: the paths of these fields, for a value of the option.
    """

    def __init__(self, *arguments: Any, fields: Iterable[str] | Callable[[Any], Iterable[str]], **options: Any) -> None:
        """The other arguments are click's."""
        super().__init__(*arguments, **options)
        self.fields: Callable[[Any], Iterable[str]] = fields if callable(fields) else lambda _: fields


def require_one_of_both(ctx: click.Context) -> None:
    """Refuse a command line in which an option and `--set` give a value for the same field. Raises InputError."""
    overrides = ctx.params.get("overrides") or ()
    by_user = click.core.ParameterSource.COMMANDLINE
    options = [one for one in ctx.command.params if isinstance(one, FieldOption)]
    given = [one for one in options if one.name and ctx.get_parameter_source(one.name) is by_user]
    if not overrides or not given:
        return
    from lorarl_api.load import assigned  # not at the top: it imports pydantic

    set_ = [path for assignment in overrides for path in assigned(assignment)]
    for option in given:
        for field in option.fields(ctx.params[str(option.name)]):
            if path := next((path for path in set_ if _overlap(path, field)), None):
                flag = option.opts[0]
                raise InputError(
                    f"--set {path}",
                    f"a value beside {flag}",
                    f"one of both, for {flag} decides {field}",
                    f"Leave out --set {path}, or {flag}.",
                )


def _overlap(path: str, field: str) -> bool:
    return f"{path}.".startswith(f"{field}.") or f"{field}.".startswith(f"{path}.")
