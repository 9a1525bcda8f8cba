"""`lorarl merge`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lorarl_trainer.cli import options
from lorarl_trainer.cli.help import Command

if TYPE_CHECKING:
    from lorarl_trainer.trained_adapters.source import Checkpoint


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
@options.checkpoint
@click.option("--out", type=options.FILE, required=True, help="New folder for the merged model.")
def command(
    adapter: str,
    job: Path | None,
    overrides: tuple[str, ...],
    base: str | None,
    checkpoint: Checkpoint | None,
    out: Path,
) -> None:
    """Write base model and adapter as one plain model, with its tokenizer.

    ADAPTER is a folder or URI with a PEFT adapter, or a run: its folder, or its job's name under out/.

    The merged model's logits are compared with those of base and adapter, and its weights are computed again from the
    files of both. Nothing is left behind if they differ.
    """
    from lorarl_trainer.loading import ask_server, serve_command
    from lorarl_trainer.lora.chat_template import folder_chat_template
    from lorarl_trainer.trained_adapters.merge import merge
    from lorarl_trainer.trained_adapters.source import find_adapter

    source = find_adapter(adapter, job, overrides, base, checkpoint)
    merged = merge(source, out)
    print(f"{out}: {source.base} with {source.label}; its logits are within {merged.off:.1e} of those of both together")
    if merged.computed:
        print(f"check     {merged.computed} adapted weights are W + scale B A, computed again from the files")
    print(f"vLLM      {serve_command()} {shlex.quote(str(out))}")
    chat = source.chats and folder_chat_template(out) is not None
    print(f"          {ask_server(str(out), chat=chat)}")
