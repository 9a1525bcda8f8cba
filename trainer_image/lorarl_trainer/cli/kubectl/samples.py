"""`kubectl lorarl samples`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from lorarl_trainer.cli.help import Command
from lorarl_trainer.cli.kubectl import source
from lorarl_trainer.errors import InputError


@click.command(
    "samples",
    cls=Command,
    examples=["kubectl lorarl samples gsm8k", "kubectl lorarl samples gsm8k --step 40 --held-out"],
)
@click.argument("job", required=False)
@click.option("--step", type=int, help="Which step.  [default: the newest]")
@click.option("--held-out", is_flag=True, help="Samples of the evaluation instead of the training.")
@click.option("--groups", type=click.IntRange(min=1), default=1, show_default=True, help="How many groups.")
@source.record
@source.cluster_flags
def command(
    job: str | None,
    step: int | None,
    held_out: bool,
    groups: int,
    uri: str | None,
    namespace: str | None,
    context: str | None,
    kubeconfig: str | None,
) -> None:
    """Print prompts and completions of a step with their rewards, from the job's record."""
    from lorarl_trainer.progress.samples import samples_by_step

    found = source.find_source(job, uri, source.kubectl(namespace, context, kubeconfig))
    with TemporaryDirectory(prefix="lorarl-") as folder:
        found.record.fetch(Path(folder))
        steps = samples_by_step(Path(folder))["held_out" if held_out else "training"]
    chosen = [one for one in steps if step in (None, one["step"])]
    if not chosen:
        known = f"a step from {steps[0]['step']} to {steps[-1]['step']}" if steps else "a job that keeps samples"
        raise InputError("--step", str(step), known, "tracking.samplesPerStep says how many samples a job keeps.")
    print(f"step {chosen[-1]['step']}")
    for group in chosen[-1]["groups"][:groups]:
        print(group_text(group))


def group_text(group: Mapping[str, Any]) -> str:
    """Return a prompt and its completions, each with its reward."""
    lines = [f"\nrow {group['row']}, answer {group['answer']!r}", *_quoted(group["model_prompt"])]
    for completion in group["completions"]:
        reward = "no reward" if completion["reward"] is None else f"reward {completion['reward']:g}"
        advantage = f", advantage {completion['advantage']:+.2f}" if "advantage" in completion else ""
        lines += [f"{reward}{advantage}, {completion['tokens']} tokens", *_quoted(completion["text"])]
        for number, one in enumerate(completion.get("further", ()), 2):
            lines += [f"sequence {number} of the episode begins with", *_quoted(one["model_prompt"])]
            lines += [f"and has {one['tokens']} tokens", *_quoted(one["completion"])]
    return "\n".join(lines)


def _quoted(text: str) -> list[str]:
    return [f"  | {line}" for line in text.splitlines()]
