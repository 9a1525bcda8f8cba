"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path

import click

FILE = click.Path(path_type=Path)
"""A file or folder. Commands check it themselves: their messages name the fix."""

overrides = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="PATH=VALUE",
    help="Override a field, for example --set spec.trainer.steps=5. Can be repeated.",
)
out_dir = click.option(
    "--out",
    "out_dir",
    type=FILE,
    help="Folder for metrics, the report and logs.  [default: out/NAME]",
)
