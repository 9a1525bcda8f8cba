"""Options that several commands have."""

from __future__ import annotations

import math
from pathlib import Path

import click

from lorarl_trainer.cli.field_option import FieldOption

FILE = click.Path(path_type=Path)
"""A file or folder. Commands check it themselves: their messages name the fix."""


def finite(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """Return the value of an option, unless it is no finite number: click takes nan and inf for floats."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is no finite number.", ctx, param)
    return value


overrides = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="PATH=VALUE",
    help="Override a field, for example --set spec.trainer.steps=5. Can be repeated.",
)
gpu_memory = click.option(
    "--gpu-memory",
    type=click.FloatRange(min=1),
    callback=finite,
    metavar="GB",
    help="Memory of each GPU that the jobs will get.  [default: that of the GPUs here]",
)
out_dir = click.option(
    "--out",
    "out_dir",
    type=FILE,
    help="Folder for metrics, the report and logs.  [default: out/NAME]",
)
adapter = click.argument("adapter")
job = click.option("--job", type=FILE, metavar="FILE", help="The job's manifest.  [default: that of the run's folder]")
base = click.option(
    "--base",
    cls=FieldOption,
    fields=["spec.model.uri", "spec.model.revision"],
    metavar="MODEL",
    help="Base model: a folder or a hub name.  [default: the adapter's]",
)
checkpoint = click.option(
    "--checkpoint",
    type=click.Choice(["best", "newest"]),
    help="Which of a run's.  [default: the best if checkpoint.keepBest is set, else the newest]",
)
temperature = click.option(
    "--temperature",
    cls=FieldOption,
    fields=["spec.rollout.temperature"],
    type=click.FloatRange(min=0),
    callback=finite,
    help="0 is greedy.  [default: greedy; several samples take the job's]",
)
seed = click.option("--seed", type=int, default=0, show_default=True, help="Of the samples.")
