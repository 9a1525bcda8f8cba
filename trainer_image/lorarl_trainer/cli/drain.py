"""`lorarl drain`."""

from __future__ import annotations

import click


@click.command("drain", hidden=True)
def command() -> None:
    """Prepare this pod for termination (preStop hook).

    Ask the trainer for a checkpoint and wait until it has exited.
    """
    from lorarl_trainer.pods.drain import drain

    drain()
