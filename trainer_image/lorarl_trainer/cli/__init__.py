"""The command `lorarl`: one file a command. Each imports what it needs when it runs, so that `--help` is instant."""

from __future__ import annotations

import click

from lorarl_trainer.cli import completion, drain, purge, run, setup, upload, validate
from lorarl_trainer.cli.help import Sections

SECTIONS = {
    "Train": (validate.command, run.command),
    "Stores": (upload.command, purge.command),
    "Your environment": (setup.command, completion.command),
    "Inside a cluster's pods": (drain.command,),
}
"""The commands under each heading of `lorarl --help`."""

main = click.version_option(package_name="lorarl")(
    Sections(
        SECTIONS,
        name="lorarl",
        help="LoRA reinforcement learning: one manifest in, a PEFT adapter out.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
)
