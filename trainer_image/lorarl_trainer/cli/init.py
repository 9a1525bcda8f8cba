"""`lorarl init`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import click

from lorarl_trainer.cli import options
from lorarl_trainer.cli.help import Command


@click.command(
    "init",
    cls=Command,
    examples=[
        "lorarl init sums",
        "lorarl init --model Qwen/Qwen2.5-0.5B-Instruct --data train.jsonl --reward numeric",
        "lorarl init sums --model models/SmolLM2 --data rows.csv --reward function --prompt-field question",
    ],
)
@click.argument("folder", type=options.FILE, default=".")
@click.option("--name", metavar="NAME", help="Name of the job.  [default: the folder's]")
@click.option("--model", metavar="MODEL", help="Base model: a folder, a URI, or ORG/NAME on the Hugging Face hub.")
@click.option("--data", metavar="FILE", help="Training rows: a .jsonl, .parquet or .csv file, or a URI.")
@click.option(
    "--reward",
    type=click.Choice(["exact", "numeric", "math_verify", "function"]),
    help="A built-in comparison with the answer, or your own Python function.",
)
@click.option("--prompt-field", metavar="COLUMN", help="Column with the prompt.  [default: by its name]")
@click.option("--answer-field", metavar="COLUMN", help="Column with the answer.  [default: by its name]")
@click.option("--gpus", type=click.IntRange(min=0), help="GPUs of this machine to use.  [default: 1 if there is one]")
def command(
    folder: Path,
    name: str | None,
    model: str | None,
    data: str | None,
    reward: str | None,
    prompt_field: str | None,
    answer_field: str | None,
    gpus: int | None,
) -> None:
    """Write the manifest of a new job, and a reward file with a working example, into FOLDER.

    On a terminal it asks for what no option says. Without data, it writes a few example rows. It overwrites nothing.
    """
    from lorarl_api.load import load_job
    from lorarl_trainer.devices.nvidia_smi import largest_gpu
    from lorarl_trainer.errors import InputError
    from lorarl_trainer.launch import new_job

    asks = sys.stdin.isatty() and sys.stdout.isatty()
    if asks:
        model = model or click.prompt("Base model (a folder, or ORG/NAME on the Hugging Face hub)")
        data = (
            data
            if data is not None
            else click.prompt("Training data (empty: write example rows)", default="", show_default=False)
        )
        reward = reward or _chosen(new_job.REWARDS)
    if not model:
        hint = "Add --model, for example --model Qwen/Qwen2.5-0.5B-Instruct."
        raise InputError("--model", "nothing", "the base model", hint)
    base = new_job.model_uri(model)
    uri = new_job.data_uri(data, folder) if data else None
    columns = new_job.columns_of(uri) if uri else []
    if gpus is None:
        gpus = 1 if largest_gpu() else 0
    prompt, answer = new_job.choose_fields(columns, prompt_field, answer_field)
    job = new_job.NewJob(
        name=name or new_job.job_name(folder),
        model=base,
        data=uri,
        reward=reward or new_job.OWN_REWARD,
        prompt=prompt,
        answer=answer,
        gpus=gpus,
        positions=new_job.positions_of(base),
    )
    files = job.files()
    load_job(files[new_job.MANIFEST])
    written = new_job.write_files(folder, files)
    for path in written:
        print(f"wrote {path}")
    here = "" if folder == Path() else f"cd {folder} && "
    print(f"\nnext: {here}lorarl run {new_job.MANIFEST} --dry-run")


def _chosen(rewards: Mapping[str, str]) -> str:
    for name, meaning in rewards.items():
        print(f"  {name:<12} {meaning}")
    return str(click.prompt("Reward", type=click.Choice(list(rewards)), default="function"))
