"""The command `kubectl lorarl`: a job's progress and its record, during the job, after it, and without its cluster."""

from __future__ import annotations

import click

from lorarl_trainer.cli.help import Sections
from lorarl_trainer.cli.kubectl import compare, logs, open_report, run_now, samples, top, why

SECTIONS = {
    "Jobs": (top.command, why.command, run_now.command),
    "Records": (logs.command, samples.command, compare.command, open_report.command),
}
"""The commands under each heading of `kubectl lorarl --help`."""

main = click.version_option(package_name="lorarl")(
    Sections(
        SECTIONS,
        not_installed="this command reads object stores. Install it with: pip install 'lorarl[kubectl]'",
        name="kubectl lorarl",
        help="What a LoRARLJob does and did, from its status and from its record in the checkpoints' store.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
)
