"""`lorarl validate`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from lorarl_trainer.cli import options
from lorarl_trainer.cli.help import Command


@click.command(
    "validate",
    cls=Command,
    examples=[
        "lorarl validate job.yaml",
        "lorarl validate job.yaml --set spec.adapter.rank=64",
        "lorarl validate examples/*.yaml --gpu-memory 80",
    ],
)
@click.argument("files", nargs=-1, required=True, type=options.FILE)
@options.overrides
@options.gpu_memory
def command(files: tuple[Path, ...], overrides: tuple[str, ...], gpu_memory: float | None) -> None:
    """Check manifests without running them, and the base models that are on this machine.

    Data is not read, for it may be elsewhere. `lorarl run --dry-run` reads it, and names columns that the model does
    not see.

    Each error is printed as `path: got, expected. Hint.` The exit code is 1 if there are errors.
    """
    from lorarl_api.validate import validate_files
    from lorarl_trainer.install.locks import NOT_INSTALLED, installed_flavour

    if installed_flavour() is None:
        sys.exit(
            validate_files(files, lambda job: (None, f"its base model was not checked: {NOT_INSTALLED}"), overrides)
        )
    from lorarl_trainer.dry_run.local_model import judge_local_model

    sys.exit(validate_files(files, lambda job: judge_local_model(job, gpu_memory), overrides))
