"""`lorarl chat`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lorarl_trainer.cli import options
from lorarl_trainer.cli.help import Command
from lorarl_trainer.errors import InputError

if TYPE_CHECKING:
    from lorarl_trainer.trained_adapters.source import Checkpoint


@click.command(
    "chat",
    cls=Command,
    examples=[
        "lorarl chat out/sums",
        "lorarl chat adapters/sums --base models/SmolLM2 --temperature 0.7",
        "echo 'What is 2 plus 3?' | lorarl chat out/sums",
        "lorarl chat out/sums --row 12",
        "lorarl chat out/sums --prompt-file prompt.txt",
    ],
)
@options.adapter
@options.job
@options.overrides
@options.base
@options.checkpoint
@options.temperature
@click.option(
    "--row", type=click.IntRange(min=1), help="Ask this row of the job's training data, or play its episode, and end."
)
@click.option("--prompt-file", type=options.FILE, help="Ask the text of a file, which may have several lines, and end.")
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Longest answer; episodes have the job's limits.",
)
@options.seed
def command(
    adapter: str,
    job: Path | None,
    overrides: tuple[str, ...],
    base: str | None,
    checkpoint: Checkpoint | None,
    temperature: float | None,
    row: int | None,
    prompt_file: Path | None,
    max_tokens: int,
    seed: int,
) -> None:
    """Ask base model and adapter the same questions, side by side.

    ADAPTER is a folder or URI with a PEFT adapter, or a run: its folder, or its job's name under out/.
    """
    from lorarl_trainer.trained_adapters.chat import READS, Answerer
    from lorarl_trainer.trained_adapters.source import find_adapter

    prompt = None if prompt_file is None else _prompt(prompt_file)
    if row is not None and prompt_file is not None:
        raise InputError("--row", f"{row} beside --prompt-file", "one question", "Leave one of the two out.")
    try:
        source = find_adapter(adapter, job, overrides, base, checkpoint, READS)
        answerer = Answerer(source, max_tokens=max_tokens, temperature=temperature or 0.0, seed=seed)
        if row is not None:
            answerer.ask_row(row, sys.stdout)
        elif prompt is not None:
            answerer.ask(prompt, sys.stdout)
        else:
            answerer.chat(sys.stdin, sys.stdout)
    except KeyboardInterrupt:
        print()


def _prompt(file: Path) -> str:
    """Return the text of a file. A line break at its end is not a part of it.

    Raises:
        InputError: it cannot be read, or has no text.
    """
    expected = "a file with a prompt, as text in UTF-8"
    try:
        text = file.read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else f"bytes that are not UTF-8 at {error.start}"
        raise InputError("--prompt-file", f"{file} ({why})", expected, "Name another file, or correct it.") from error
    if not text.strip():
        raise InputError("--prompt-file", f"{file}, which is empty", expected, "Write the prompt into it.")
    return text
