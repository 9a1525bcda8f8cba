"""The command `lorarl`: one file a command. Each imports what it needs when it runs, so that `--help` is instant."""

from __future__ import annotations

import click

from lorarl_trainer.cli import (
    chat,
    compare,
    completion,
    dashboard,
    drain,
    env,
    evaluate,
    init,
    list_runs,
    merge,
    open_run,
    purge,
    render,
    run,
    serve,
    setup,
    sweep,
    upload,
    validate,
)
from lorarl_trainer.cli.help import Sections

SECTIONS = {
    "Train": (init.command, validate.command, render.command, run.command, sweep.command, serve.command),
    "Look at runs": (list_runs.command, open_run.command, compare.command, dashboard.command),
    "Use an adapter": (evaluate.command, chat.command, merge.command),
    "Stores": (upload.command, purge.command),
    "Your machine": (setup.command, env.command, completion.command),
    "Inside a cluster's pods": (drain.command,),
}
"""The commands under each heading of `lorarl --help`."""

_RUN = "`lorarl run job.yaml` trains."
MEANT = {
    **dict.fromkeys(("train", "fit", "start", "launch", "exec", "finetune", "fine-tune", "tune"), _RUN),
    **dict.fromkeys(("grpo", "ppo", "dapo"), f"{_RUN} The manifest's algorithm.type says by which algorithm."),
    **dict.fromkeys(("sft", "dpo"), f"{_RUN} `lorarl init --algorithm sft` (or dpo) writes a manifest."),
    **dict.fromkeys(
        ("grid", "search", "hpo"), "`lorarl sweep job.yaml --over PATH=VALUE,VALUE` trains each combination."
    ),
    **dict.fromkeys(("eval", "test", "benchmark"), "`lorarl evaluate RUN` scores an adapter beside its base model."),
    **dict.fromkeys(("generate", "infer", "predict"), "`lorarl chat RUN` asks base model and adapter."),
    **dict.fromkeys(("delete", "rm", "clean"), "`lorarl purge RUN` deletes a run's checkpoints."),
    "tinker": "`lorarl serve --tinker` answers clients of Tinker's API.",
    **dict.fromkeys(("ls", "runs", "status", "ps"), "`lorarl list` shows the runs here."),
    **dict.fromkeys(("report", "show", "plot"), "`lorarl open RUN` shows a run's report."),
    **dict.fromkeys(("ui", "web", "tensorboard"), "`lorarl dashboard` shows all runs in the browser."),
    **dict.fromkeys(("check", "lint"), "`lorarl validate job.yaml` checks a manifest; `lorarl run --dry-run` more."),
    **dict.fromkeys(("export", "fuse"), "`lorarl merge RUN --out FOLDER` writes one plain model."),
    **dict.fromkeys(("install", "doctor"), "`lorarl setup` installs the trainer's packages."),
}
"""What people call commands elsewhere, and what does that here."""

main = click.version_option(package_name="lorarl")(
    Sections(
        SECTIONS,
        meant=MEANT,
        name="lorarl",
        help="LoRA reinforcement learning: one manifest in, a PEFT adapter out.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
)
