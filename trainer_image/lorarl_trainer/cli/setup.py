"""`lorarl setup`."""

from __future__ import annotations

import click

from lorarl_trainer.cli.help import Command


@click.command("setup", cls=Command, examples=["lorarl setup --cpu", "lorarl setup --gpu"])
@click.option("--cpu", "flavour", flag_value="cpu", help="For a machine without a GPU: 7 GB.")
@click.option("--gpu", "flavour", flag_value="gpu", help="For NVIDIA GPUs: 10 GB. It compiles an extension of torch.")
def command(flavour: str | None) -> None:
    """Install the trainer's packages into this environment.

    The versions are those that lorarl is tested with, and each file is checked by its hash.
    uv is used if it is there, otherwise pip.
    """
    import shutil

    from lorarl_trainer.install.checks import look, require
    from lorarl_trainer.install.install import install
    from lorarl_trainer.install.locks import Flavour, carried_lock

    if flavour is None:
        found = (
            "an NVIDIA GPU: run `lorarl setup --gpu`"
            if shutil.which("nvidia-smi")
            else "no NVIDIA GPU: run `lorarl setup --cpu`"
        )
        raise click.UsageError(f"got neither --cpu nor --gpu, expected one of them. This machine has {found}.")
    chosen: Flavour = "gpu" if flavour == "gpu" else "cpu"
    lock = carried_lock(chosen)
    machine = look()
    require(machine, chosen)
    count = install(lock, chosen, click.echo)
    done = f"installed {count} packages" if count else "nothing to install: all packages are there"
    click.echo(f"lorarl: {done}. Next: `lorarl init`, which writes a job.")
