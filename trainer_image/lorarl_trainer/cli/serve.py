"""`lorarl serve`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from lorarl_trainer.cli import options
from lorarl_trainer.cli.help import Command


@click.command(
    "serve",
    cls=Command,
    examples=[
        "lorarl serve --tinker --model Qwen/Qwen3-4B-Instruct-2507",
        "lorarl serve --tinker --model models/toy --rank 8 --set spec.cluster.gpusPerNode=0",
    ],
)
@click.option("--tinker", is_flag=True, required=True, help="Speak Tinker's API, which is the only one so far.")
@click.option("--model", required=True, help="Base model: a folder or URI, or ORG/NAME on the Hugging Face hub.")
@click.option("--rank", type=click.IntRange(min=1), default=32, show_default=True, help="Of all adapters.")
@click.option(
    "--max-prompt-tokens", type=click.IntRange(min=1), default=2048, show_default=True, help="Longest prompt."
)
@click.option("--max-tokens", type=click.IntRange(min=1), default=2048, show_default=True, help="Longest completion.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Others need LORARL_TINKER_API_KEY to be set.")
@click.option("--port", type=click.IntRange(0, 65535), default=8600, show_default=True, help="0 takes a free one.")
@click.option("--out", "out_dir", type=options.FILE, default=Path("out/tinker"), show_default=True, help="Its folder.")
@options.overrides
def command(
    tinker: bool,
    model: str,
    rank: int,
    max_prompt_tokens: int,
    max_tokens: int,
    host: str,
    port: int,
    out_dir: Path,
    overrides: tuple[str, ...],
) -> None:
    """Train adapters for clients that own their loop, on one base model.

    Unmodified clients of Tinker's API use it by TINKER_BASE_URL: docs/tinker.md says what differs. Weights that they
    save are PEFT adapters in the folder saved/ of --out. Ctrl-C ends it, and what was not saved is lost.
    """
    del tinker
    from lorarl_trainer.devices.nvidia_smi import largest_gpu
    from lorarl_trainer.first_job.new_job import model_uri
    from lorarl_trainer.tinker.server import KEY, Address
    from lorarl_trainer.tinker.start import job_of, serve

    job = job_of(
        model_uri(model),
        out_dir,
        rank=rank,
        longest_prompt=max_prompt_tokens,
        longest_completion=max_tokens,
        gpus=1 if largest_gpu() else 0,
        overrides=list(overrides),
    )
    terminal = os.fdopen(os.dup(1), "w", buffering=1)  # the worker's libraries get the process's own
    serve(job, model, out_dir, Address(host, port, os.environ.get(KEY)), lambda line: print(line, file=terminal))
