"""`lorarl merge`."""

from __future__ import annotations

from pathlib import Path

import click

from lorarl_trainer.cli import options
from lorarl_trainer.cli.help import Command


@click.command(
    "merge",
    cls=Command,
    examples=[
        "lorarl merge out/sums --out merged",
        "lorarl merge s3://team/adapters/sums/iter_0000020 --base models/SmolLM2 --out merged",
    ],
)
@options.adapter
@options.job
@options.overrides
@options.base
@click.option("--out", type=options.FILE, required=True, help="New folder for the merged model.")
def command(adapter: str, job: Path | None, overrides: tuple[str, ...], base: str | None, out: Path) -> None:
    """Write base model and adapter as one plain model, with its tokenizer.

    ADAPTER is a folder or URI with a PEFT adapter, or the folder of a run, such as out/NAME. The merged model's logits
    are compared with those of base and adapter before anything is written.
    """
    from lorarl_trainer.adapters.merge import merge
    from lorarl_trainer.adapters.source import find_adapter

    off = merge(find_adapter(adapter, job, overrides, base), out)
    print(f"{out}: the merged model; its logits are within {off:.1e} of those of base and adapter")
    print(f"vLLM      vllm serve {out}")
