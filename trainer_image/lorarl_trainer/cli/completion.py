"""`lorarl completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from lorarl_trainer.cli.help import Command


@click.command(
    "completion",
    cls=Command,
    examples=[
        'eval "$(lorarl completion bash)"          # in ~/.bashrc',
        'eval "$(lorarl completion zsh)"           # in ~/.zshrc',
        "lorarl completion fish | source           # in ~/.config/fish/config.fish",
    ],
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the script with which a shell completes lorarl's commands and options."""
    completer = get_completion_class(shell)
    assert completer is not None
    click.echo(completer(context.find_root().command, {}, "lorarl", "_LORARL_COMPLETE").source())
