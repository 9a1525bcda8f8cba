"""`lorarl list`."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import click

from lorarl_trainer.cli import options
from lorarl_trainer.cli.help import Command

DEFAULT = Path("out")


@click.command("list", cls=Command, examples=["lorarl list", "lorarl list /data/runs"])
@click.argument("folder", type=options.FILE, default=DEFAULT)
def command(folder: Path) -> None:
    """List the runs under FOLDER, by default out, the newest first."""
    from lorarl_trainer.progress.runs import find_runs
    from lorarl_trainer.progress.tables import age, table

    runs = find_runs(folder) if folder.exists() or folder != DEFAULT else []
    if not runs:
        sys.exit(f"lorarl: no runs in {folder}. `lorarl run` makes one.")
    now = datetime.now(UTC)
    rows = [
        (
            str(run.folder),
            run.job,
            run.state,
            f"{run.step}/{run.total_steps}" if run.total_steps else "–",
            run.score or "–",
            age(run.changed, now),
        )
        for run in runs
    ]
    print(table([("FOLDER", "JOB", "STATE", "STEP", "RESULT", "CHANGED"), *rows]))
