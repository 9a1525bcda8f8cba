"""`lorarl env`."""

from __future__ import annotations

import click

from lorarl_trainer.cli.help import Command


@click.group("env", short_help="Add packages to lorarl's environment.")
def command() -> None:
    """Manage the Python environment that lorarl runs in."""


@command.command(
    "add",
    cls=Command,
    examples=[
        "lorarl env add reasoning-gym",
        "lorarl env add 'sympy>=1.13' ./my_rewards --dry-run",
        "lorarl env add verifiers==0.4.0 ./my_taskset",
    ],
)
@click.argument("packages", nargs=-1, required=True, metavar="PACKAGE...")
@click.option("--dry-run", is_flag=True, help="Only show what would be installed.")
def add(packages: tuple[str, ...], dry_run: bool) -> None:
    """Install packages that a reward or an environment needs, and keep every installed package at its version.

    verifiers does not fit lorarl's packages: a command that names it installs all into an environment beside lorarl's.

    In a clone, `make setup` installs them again when it has replaced the environment. In a cluster, add them to the
    trainer's image.
    """
    from lorarl_trainer.install.packages import add_packages

    print(add_packages(packages, dry_run=dry_run))
