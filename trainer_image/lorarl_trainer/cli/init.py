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
        "lorarl init tone --model models/SmolLM2 --data pairs.jsonl --algorithm dpo",
        "lorarl init game --model models/SmolLM2 --environment",
    ],
)
@click.argument("folder", type=options.FILE, default=".")
@click.option("--name", metavar="NAME", help="Name of the job.  [default: the folder's]")
@click.option("--model", metavar="MODEL", help="Base model: a folder, a URI, or ORG/NAME on the Hugging Face hub.")
@click.option("--data", metavar="FILE", help="Training rows: a .jsonl, .parquet or .csv file, or a URI.")
@click.option(
    "--held-out", metavar="FILE", help="Rows to measure with.  [default: a file held_out, eval or test beside]"
)
@click.option(
    "--algorithm",
    type=click.Choice(["grpo", "sft", "dpo"]),
    help="Learn from a reward, from answers, or from pairs of answers.  [default: grpo]",
)
@click.option(
    "--reward",
    type=click.Choice(["exact", "numeric", "math_verify", "function"]),
    help="A built-in comparison with the answer, or your own Python function.",
)
@click.option(
    "--environment", is_flag=True, help="Write a class that plays episodes of several turns, and rewards them."
)
@click.option("--prompt-field", metavar="COLUMN", help="Column with the prompt.  [default: by its name]")
@click.option("--answer-field", metavar="COLUMN", help="Column with the answer.  [default: by its name]")
@click.option("--chosen-field", metavar="COLUMN", help="For dpo, the column with the preferred answer.")
@click.option("--rejected-field", metavar="COLUMN", help="For dpo, the column with the other answer.")
@click.option("--gpus", type=click.IntRange(min=0), help="GPUs of this machine to use.  [default: 1 if there is one]")
def command(
    folder: Path,
    name: str | None,
    model: str | None,
    data: str | None,
    held_out: str | None,
    algorithm: str | None,
    reward: str | None,
    environment: bool,
    gpus: int | None,
    **columns: str | None,
) -> None:
    """Write the manifest of a new job, and a reward or an environment with a working example, into FOLDER.

    On a terminal it asks for what no option says. Without data, it writes a few example rows. It overwrites nothing,
    and uses a reward file or an environment that is there.
    """
    from lorarl_trainer.devices.nvidia_smi import largest_gpu
    from lorarl_trainer.errors import InputError
    from lorarl_trainer.first_job import new_data, new_job

    others = {"data": data, "held_out": held_out, "algorithm": algorithm, "reward": reward, **columns}
    _require_none(others if environment else {})
    asks = sys.stdin.isatty() and sys.stdout.isatty()
    if asks:
        model = model or click.prompt("Base model (a folder, or ORG/NAME on the Hugging Face hub)")
    if asks and not environment:
        if algorithm is None and reward is None:
            algorithm = _chosen("Learn", new_job.ALGORITHMS, "grpo")
        data = (
            data
            if data is not None
            else click.prompt("Training data (empty: write example rows)", default="", show_default=False)
        )
        if algorithm in (None, "grpo"):
            reward = reward or _chosen("Reward", new_job.REWARDS, new_job.OWN_REWARD)
    if not model:
        hint = "Add --model, for example --model Qwen/Qwen2.5-0.5B-Instruct."
        raise InputError("--model", "nothing", "the base model", hint)
    algorithm = algorithm or "grpo"
    if reward and algorithm != "grpo":
        hint = "Remove --reward, or use --algorithm grpo."
        raise InputError("--reward", reward, f"none for {algorithm}, which learns from the data's own answers", hint)
    reward = reward or new_job.OWN_REWARD
    base = new_job.model_uri(model)
    uri = new_data.data_uri(data, folder) if data else None
    sample = new_data.sample_of(uri) if uri else new_data.Sample([])
    named = {f"{option.removesuffix('_field')}Field": column for option, column in columns.items()}
    job = new_job.NewJob(
        name=name or new_job.job_name(folder),
        model=base,
        data=uri,
        reward=reward,
        columns=new_data.choose_columns(sample, algorithm, named, own_reward=reward == new_job.OWN_REWARD),
        algorithm=algorithm,
        environment=environment,
        held_out=new_data.data_uri(held_out, folder) if held_out else uri and new_data.held_out_beside(uri),
        gpus=(1 if largest_gpu() else 0) if gpus is None else gpus,
        positions=new_job.positions_of(base),
        chat_template=new_job.has_chat_template(base),
        longest_prompt=sample.longest_prompt,
    )
    job.load()  # names what is wrong with the answers
    job = new_job.sized(job, sample)
    _write(folder, job.files())
    for line in new_job.advice(job, sample.columns):
        print(line)
    here = "" if folder == Path() else f"cd {folder} && "
    print(f"\nnext: {here}lorarl run {new_job.MANIFEST} --dry-run")


def _require_none(options: Mapping[str, str | None]) -> None:
    """Refuse options that do not go together with --environment."""
    from lorarl_trainer.errors import InputError

    for name, value in options.items():
        if value is not None:
            option = f"--{name.replace('_', '-')}"
            hint = f"Remove {option}. For rows of your own, set data.train in the manifest: the class gets each row."
            raise InputError(option, value, "none beside --environment, whose class makes tasks and rewards", hint)


def _write(folder: Path, files: Mapping[str, str]) -> None:
    """Write the files, without code of the user's that is there, and say so."""
    from lorarl_trainer.first_job import new_job

    kept = {name for name in (new_job.REWARD_FILE, new_job.ENVIRONMENT_FILE) if (folder / name).exists()} & set(files)
    written = new_job.write_files(folder, {name: text for name, text in files.items() if name not in kept})
    for name in kept:
        print(f"kept {folder / name}")
    for path in written:
        print(f"wrote {path}")


def _chosen(question: str, choices: Mapping[str, str], default: str) -> str:
    for name, meaning in choices.items():
        print(f"  {name:<12} {meaning}")
    return str(click.prompt(question, type=click.Choice(list(choices)), default=default))
