"""How to look at a run and load its adapter: the last lines that a run prints, and the snippets of its report."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from lorarl_api.v1alpha1 import served_rank
from lorarl_api.v1alpha1.algorithm_types import FROM_DATA
from lorarl_api.v1alpha1.stores import STORES
from lorarl_trainer.loading import ask_server, ask_with_peft, serve_command
from lorarl_trainer.progress.evaluations import evaluations_of, fallen_components
from lorarl_trainer.progress.metrics_file import METRICS, REPORT

ADAPTER_FOLDER = "lora_adapter"
"""The folder into which the snippets download an adapter."""
BASE_FOLDER = "base_model"
"""The folder into which the snippets download a base model."""
_ALREADY_GOOD = 0.9
"""A held-out score of at most 1 that leaves little to learn."""
_STILL_LOW = 0.25
"""A held-out score with which an adapter is of no use, if 1 is the best."""
_FORM_FIRST = "if hardly any is right, teach the form first: algorithm.type sft, then adapter.initFrom."


def local_path(uri: str) -> str:
    """Return the local path of an adapter.

    This is the path of file:PATH and file:///PATH, as written. For any other store it is the folder that the download
    commands use.
    """
    return uri.removeprefix("file://").removeprefix("file:") if uri.startswith("file:") else ADAPTER_FOLDER


def download_command(uri: str, folder: str = ADAPTER_FOLDER) -> str | None:
    """Return the store's own command that downloads a folder; None for a local folder or a name on the hub."""
    parts = urlsplit(uri)
    place, path = STORES.get(parts.scheme), parts.path.strip("/")
    if place is None or not place.download:
        return None
    filled = {"uri": uri, "bucket": parts.netloc, "path": path, "pattern": f"{path}/*"}
    return place.download.format(folder=folder, **{name: shlex.quote(text) for name, text in filled.items()})


def download_commands(summary: Mapping[str, Any]) -> list[str]:
    """Return the commands that download adapter and base model from a store, to be run before the snippets."""
    commands = (download_command(summary["adapter_uri"]), download_command(summary["base_model"], BASE_FOLDER))
    return [command for command in commands if command]


def _base_model(summary: Mapping[str, Any]) -> str:
    """Return the folder or name from which transformers and vLLM load the base model. Neither reads from a store."""
    name: str = summary["base_model"]
    return BASE_FOLDER if download_command(name, BASE_FOLDER) else name


def peft_snippet(summary: Mapping[str, Any]) -> str:
    """Return Python code that loads base model and adapter with transformers and PEFT, and answers a question."""
    adapter = local_path(summary["adapter_uri"])
    modules, quantization = summary["adapter"].get("modules", ()), _quantization(summary)
    base, revision = _base_model(summary), summary["base_revision"]
    return "\n".join(ask_with_peft(base, adapter, revision, modules=modules, quantization=quantization))


def vllm_command(summary: Mapping[str, Any]) -> str:
    """Return the command that serves base model and adapter with vLLM. Requests name the job as their model.

    They are merged first, if the adapter was trained on a quantized base, which vLLM would have as its files are.
    """
    if _quantization(summary):
        adapter, job = shlex.quote(local_path(summary["adapter_uri"])), shlex.quote(summary["job"])
        base = f" --base {BASE_FOLDER}" if download_command(summary["base_model"], BASE_FOLDER) else ""
        merged = f"lorarl merge {adapter}{base} --out merged"
        return f"{merged} && {serve_command()} merged --served-model-name {job}"
    rank = served_rank(summary["adapter"]["rank"])
    revision = f" --revision {shlex.quote(summary['base_revision'])}" if summary["base_revision"] else ""
    module = shlex.quote(f"{summary['job']}={local_path(summary['adapter_uri'])}")
    base = shlex.quote(_base_model(summary))
    return f"{serve_command()} {base}{revision} --enable-lora --max-lora-rank {rank} --lora-modules {module}"


def _quantization(summary: Mapping[str, Any]) -> str | None:
    """Return how a run's manifest asks for its base to be quantized; None if it does not."""
    manifest = yaml.safe_load(summary.get("manifest") or "{}")
    quantization: str | None = manifest.get("spec", {}).get("model", {}).get("quantization")
    return None if quantization == "none" else quantization


def _best_line(best: Mapping[str, Any]) -> str:
    """Return which checkpoint is the best, if the job keeps it."""
    return f"Best      {best['uri']} (step {best['step']}, {best['metric']} {best['value']:.4g})"


def open_command(out_dir: Path) -> str:
    """Return the command that shows a run's report, also while the run trains."""
    return f"lorarl open {shlex.quote(str(out_dir))}"


def report_line(out_dir: Path, *, here: bool) -> str:
    """Return where the report of a run is. `here`: on the user's machine, which has a browser, and not in a pod."""
    page = f"{open_command(out_dir)}, or the file {out_dir / REPORT}" if here else str(out_dir / REPORT)
    return f"Report    {page}; its numbers are in {out_dir / METRICS}"


def no_gain_line(rows: Sequence[Mapping[str, Any]], algorithm: str, init_from: str | None = None) -> str | None:
    """Return that training did not clearly improve the first held-out result, and why or what helps; None if it did.

    A gain is clear if the 95% intervals before and after do not overlap. None too where there are no two results with
    intervals. A score that is still low after a gain gets a line as well.
    """
    first = next(iter(evaluations_of(rows)), None)
    if first is None or not (first["before_interval"] and first["after_interval"]):
        return None
    lower_is_better = first["metric"] == "loss"
    (low, high), (low_after, high_after) = first["before_interval"], first["after_interval"]
    result = f"held-out {first['metric']} {first['before']:.3f} -> {first['after']:.3f}"
    if high_after < low if lower_is_better else low_after > high:
        low_still = algorithm not in FROM_DATA and 0 <= first["before"] < first["after"] < _STILL_LOW
        return f"Still low {result}. If 1 is the best: {_FORM_FIRST}" if low_still else None
    look = "Look at the samples;"
    if unscored := sum(row.get("reward_failures", 0) + row.get("eval_unscored", 0) for row in rows):
        look = f"{unscored:.0f} completions had no score: fix the reward, as the warnings say. {look}"
    if low_after > high if lower_is_better else high_after < low:
        return f"Worse     {result}, beyond its 95% intervals. {look} lower trainer.learningRate, or trainer.steps."
    before = "with the adapter of spec.adapter.initFrom" if init_from else "before the training"
    if not lower_is_better and _ALREADY_GOOD <= first["before"] <= 1 and first["after"] <= 1:
        return (
            f"No gain   held-out {first['metric']} was already {first['before']:.3f} {before}, and is "
            f"{first['after']:.3f} after it. If 1 is the best, these rows leave little to learn: take harder ones."
        )
    hint = "add rows or steps."
    if algorithm not in FROM_DATA:
        hint = _FORM_FIRST
    return f"No gain   {result} is no improvement beyond its 95% intervals. {look} {hint}"


def fallen_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return which components of held-out rewards fell while their score rose, and what may be the cause."""
    if not (fallen := fallen_components(rows)):
        return []
    parts = ", ".join(f"{column} {before:.3f} -> {after:.3f}" for column, before, after in fallen)
    cut = next((row["truncated_share"] for row in rows if row.get("truncated_share") is not None), 0.0)
    cause = f" {cut:.0%} of the first step's completions were cut off: raise maxResponseTokens." if cut > 0.25 else ""
    return [f"Fell      {parts}, while the score rose. Look at the samples, and at the weights of the reward.{cause}"]


def _next_line(summary: Mapping[str, Any], folder: str) -> str:
    """Return the commands that use the adapter, with what the run lacks for them.

    A job of sft or dpo has no reward, so another job's measures it. Without held-out rows, others have to be named.
    """
    more = "" if (summary.get("data") or {}).get("held_out") else " --data ROWS.jsonl (rows not trained on)"
    if summary["algorithm"] in FROM_DATA:
        more = " --job JOB.yaml (a job with a reward)"
    return f"Next      lorarl evaluate {folder}{more}, lorarl chat {folder}"


def final_message(summary: Mapping[str, Any], out_dir: Path | None = None) -> str:
    """Return the last lines of a run, from its run_summary.json: how to load the adapter, and its URI.

    `out_dir` is the run's folder, for commands that use the adapter; None in a pod, whose folder goes with it.
    """
    uri = summary["adapter_uri"]
    if uri is None:
        return "No adapter was published."
    folder = out_dir and shlex.quote(str(out_dir))
    return "\n".join(
        [
            *([_next_line(summary, folder)] if folder else []),
            *(f"Download  {command}" for command in download_commands(summary)),
            "PEFT      in Python:",
            peft_snippet(summary),
            f"vLLM      {vllm_command(summary)}",
            f"          {ask_server(summary['job'], chat=summary['adapter'].get('chat', False))}",
            *([_best_line(best)] if (best := summary.get("best")) else []),
            f"Adapter   {uri}",
        ]
    )
