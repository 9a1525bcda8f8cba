"""`lorarl serve`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from lorarl_trainer.cli import options
from lorarl_trainer.cli.field_option import FieldOption
from lorarl_trainer.cli.help import Command

_OF_RUN = {"job": "--job", "base": "--base", "checkpoint": "--checkpoint", "versions": "--versions"}
_OF_TINKER = {"model": "--model", "rank": "--rank", "max_prompt_tokens": "--max-prompt-tokens"}
_OF_TINKER |= {"max_tokens": "--max-tokens", "adapters": "--adapters"}


class _Checkpoint(click.ParamType[str | int]):
    """best, newest, or a step."""

    name = "which"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | int:
        if value in ("best", "newest"):
            return str(value)
        try:
            return int(value)
        except ValueError:
            self.fail(f"{value!r} is none of best, newest, or the number of a step.", param, ctx)


@click.command(
    "serve",
    cls=Command,
    examples=[
        "lorarl serve sums",
        "lorarl serve out/sums --checkpoint 30 --port 8001",
        "lorarl serve s3://team/adapters/sums --job job.yaml -- --max-model-len 4096",
        "lorarl serve --tinker --model Qwen/Qwen3-4B-Instruct-2507",
        "lorarl serve --tinker --model models/toy --rank 8 --set spec.cluster.gpusPerNode=0",
    ],
)
@click.argument("adapter", required=False)
@click.argument("vllm", nargs=-1, metavar="[-- OPTIONS OF VLLM]")
@options.job
@options.base
@click.option(
    "--checkpoint",
    type=_Checkpoint(),
    help="best, newest or a step: what the name means.  [default: best if checkpoint.keepBest is set, else newest]",
)
@click.option(
    "--versions",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Checkpoints that are served at a time, the newest ones and that of the name.",
)
@click.option("--tinker", is_flag=True, help="Speak Tinker's API instead: train adapters for clients.")
@click.option(
    "--model",
    cls=FieldOption,
    fields=["spec.model.uri"],
    help="With --tinker: a folder or URI, or ORG/NAME on the Hugging Face hub.",
)
@click.option(
    "--rank",
    cls=FieldOption,
    fields=["spec.adapter.rank"],
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    help="With --tinker: of all adapters.",
)
@click.option(
    "--max-prompt-tokens",
    cls=FieldOption,
    fields=["spec.rollout.maxPromptTokens"],
    type=click.IntRange(min=1),
    default=2048,
    show_default=True,
    help="With --tinker: longest prompt.",
)
@click.option(
    "--max-tokens",
    cls=FieldOption,
    fields=["spec.rollout.maxResponseTokens"],
    type=click.IntRange(min=1),
    default=2048,
    show_default=True,
    help="With --tinker: longest completion.",
)
@click.option(
    "--adapters",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="With --tinker: sampled from together, if they fit; others take turns. On a GPU, 1 is fastest for one client.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Others need a key: VLLM_API_KEY, or with --tinker LORARL_TINKER_API_KEY.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), help="0 takes a free one.  [default: 8000, or with --tinker 8600]"
)
@click.option("--out", "out_dir", type=options.FILE, help="Its folder.  [default: out/serve/NAME, or out/tinker]")
@options.overrides
@click.pass_context
def command(
    ctx: click.Context,
    /,
    adapter: str | None,
    vllm: tuple[str, ...],
    tinker: bool,
    host: str,
    port: int | None,
    out_dir: Path | None,
    overrides: tuple[str, ...],
    **only: Any,
) -> None:
    """Serve a run's adapters with vLLM, or train adapters for clients of Tinker's API.

    ADAPTER is a run (its folder, or its job's name under out/), the folder or URI of a job's checkpoints, or one PEFT
    adapter. Requests call it by the job's name, or one version by NAME-step-30. Each version is compared with
    transformers and PEFT before it is served. While a run trains, further checkpoints follow, and no request fails.
    What follows -- goes to vLLM.

    With --tinker, clients own their loop and use the service by TINKER_BASE_URL: docs/tinker.md says what differs.
    Weights that they save are PEFT adapters in the folder saved/ of --out, and what was not saved is lost at the end.

    Ctrl-C ends it.
    """
    if tinker == bool(adapter):
        raise click.UsageError("Name an ADAPTER or a run to serve, or --tinker and a --model to train for clients.")
    given = {name for name in only if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE}
    wrong = sorted(
        (_OF_RUN if tinker else _OF_TINKER)[name] for name in given & (_OF_RUN if tinker else _OF_TINKER).keys()
    )
    if wrong or (tinker and vllm):
        other = "an ADAPTER" if tinker else "--tinker"
        raise click.UsageError(f"{wrong[0] if wrong else '--'} is for {other}.")
    if tinker:
        _serve_tinker(only, host, port, out_dir, overrides)
    else:
        _serve_run(str(adapter), only, vllm, host, port, out_dir, overrides)


def _serve_run(
    run: str,
    only: dict[str, Any],
    vllm: Sequence[str],
    host: str,
    port: int | None,
    out_dir: Path | None,
    overrides: Sequence[str],
) -> None:
    from lorarl_trainer.trained_adapters.serving.serve import serve
    from lorarl_trainer.trained_adapters.serving.subject import Request

    request = Request(
        name=run,
        job=only["job"],
        overrides=overrides,
        base=only["base"],
        choice=only["checkpoint"],
        versions=only["versions"],
        host=host,
        port=8000 if port is None else port,
        out=out_dir,
        more=vllm,
    )
    serve(request, lambda line: print(line, flush=True))


def _serve_tinker(
    only: dict[str, Any], host: str, port: int | None, out_dir: Path | None, overrides: Sequence[str]
) -> None:
    from lorarl_trainer.devices.nvidia_smi import largest_gpu
    from lorarl_trainer.first_job.new_job import model_uri
    from lorarl_trainer.tinker.server import KEY, Address
    from lorarl_trainer.tinker.start import job_of, serve

    model, folder = only["model"], out_dir or Path("out/tinker")
    if model is None:
        raise click.UsageError("Missing option '--model'.")
    job = job_of(
        model_uri(model),
        folder,
        rank=only["rank"],
        longest_prompt=only["max_prompt_tokens"],
        longest_completion=only["max_tokens"],
        gpus=1 if largest_gpu() else 0,
        overrides=list(overrides),
    )
    terminal = os.fdopen(os.dup(1), "w", buffering=1)  # the worker's libraries get the process's own
    address = Address(host, 8600 if port is None else port, os.environ.get(KEY))
    serve(job, model, folder, address, lambda line: print(line, file=terminal), adapters=only["adapters"])
