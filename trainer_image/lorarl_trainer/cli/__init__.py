"""The command `lorarl`: one file a command. Each imports what it needs when it runs, so that `--help` is instant."""

from __future__ import annotations

import click

from lorarl_trainer.cli import (
    chat,
    compare,
    completion,
    drain,
    env,
    evaluate,
    init,
    list_runs,
    merge,
    open_run,
    purge,
    render,
    run,
    setup,
    upload,
    validate,
)
from lorarl_trainer.cli.help import Sections

SECTIONS = {
    "Train": (init.command, validate.command, render.command, run.command),
    "Look at runs": (list_runs.command, open_run.command, compare.command),
    "Use an adapter": (evaluate.command, chat.command, merge.command),
    "Stores": (upload.command, purge.command),
    "Your machine": (setup.command, env.command, completion.command),
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
