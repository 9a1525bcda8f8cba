"""What `--help` shows: commands under headings, and examples for each command."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import click

from lorarl_trainer.cli.field_option import require_one_of_both
from lorarl_trainer.errors import LorarlError
from lorarl_trainer.install.locks import NOT_INSTALLED, installed_flavour
from lorarl_trainer.masked import mask_output


class Command(click.Command):
    """A command whose help ends with examples.

    Attributes:
        examples: lines as one types them in a shell.
    """

    def __init__(self, *arguments: Any, examples: Sequence[str] = (), **options: Any) -> None:
        """The other arguments are click's."""
        super().__init__(*arguments, **options)
        self.examples = examples

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, unless `--set` gives a value for the field of another option."""
        require_one_of_both(ctx)
        return super().invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples as they are: wrapped, they could not be copied."""
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples:
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")


class Sections(click.Group):
    """A group whose help lists its commands under headings."""

    def __init__(
        self,
        sections: Mapping[str, Sequence[click.Command]],
        not_installed: str = NOT_INSTALLED,
        meant: Mapping[str, str] = MappingProxyType({}),
        **options: Any,
    ) -> None:
        """The other options are click's.

        Args:
            sections: the commands under each heading.
            not_installed: how to get missing packages.
            meant: what to say of commands that are not here, by their names.
            options: click's own.
        """
        commands = {str(command.name): command for section in sections.values() for command in section}
        super().__init__(commands=commands, **options)
        self._sections, self._not_installed, self._meant = sections, not_installed, meant

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command, in a pod without the values of its Secrets in what it prints.

        What a user can act on ends it in one line, also that the trainer is not installed.
        """
        mask_output()
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError:
            if installed_flavour():
                raise
            sys.exit(f"lorarl: {self._not_installed}")
        except LorarlError as error:
            sys.exit(f"lorarl: {error}")
        except ValueError as error:
            from lorarl_api.faults import ManifestError  # not at the top: it imports pydantic

            if not isinstance(error, ManifestError):
                raise
            sys.exit(f"lorarl: {error}")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command. By another program's name for it, lorarl's own is named."""
        if args and args[0] not in self.commands and (meant := self._meant.get(args[0])):
            ctx.fail(f"No such command '{args[0]}'. {meant}")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Keep the order of the sections. A hidden command is no suggestion either."""
        return [name for name, command in self.commands.items() if not command.hidden]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one list for each heading, all in the same columns."""
        width = max(len(name) for name in self.commands)
        for heading, commands in self._sections.items():
            rows = [(f"{each.name:<{width}}", each.get_short_help_str(90)) for each in commands if not each.hidden]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)
