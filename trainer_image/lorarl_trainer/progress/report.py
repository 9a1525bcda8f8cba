"""report.html and the picture beside it, made from metrics.jsonl, samples.jsonl and run_summary.json alone."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .console import collapse_layers, duration
from .events import PHASES
from .records import METRICS, Row, read_rows, read_summary
from .samples import newest_samples
from .usage import download_commands, peft_snippet, vllm_command

TEMPLATE = "report.html.jinja"


def write_report(out_dir: Path) -> list[Path]:
    """Write `out_dir`/report.html, which needs no network, and reward.png (loss.png for sft).

    Returns:
        The files written.

    Raises:
        FileNotFoundError: `out_dir` has no run_summary.json.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from . import plots  # matplotlib takes a second to import, which no run should wait for at its start

    summary, rows = read_summary(out_dir), read_rows(out_dir / METRICS)
    steps = [row for row in rows if "loss" in row]
    pictures: list[tuple[str, Callable[[], Any]]] = []
    if steps:
        pictures.append(
            ("Loss" if summary["algorithm"] == "sft" else "Reward", lambda: plots.outcome(rows, summary["algorithm"]))
        )
        if plots.has_values(steps, "mean_abs_logprob_diff"):
            pictures.append(("KL and log-probability difference", lambda: plots.divergence(steps)))
        if plots.has_values(steps, "response_tokens_mean"):
            pictures.append(("Response length", lambda: plots.response_length(steps)))
        pictures.append(("Where a step's time goes", lambda: plots.phase_seconds(steps)))
        if names := plots.others(steps):
            pictures.append(("More metrics", lambda: plots.small_multiples(steps, names)))
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    html = environment.get_template(TEMPLATE).render(
        summary=summary,
        tiles=tiles(summary, steps),
        facts=facts(summary),
        phases=phase_table(steps),
        start=start_table(summary["startup"]),
        pictures=[(title, base64.b64encode(plots.to_svg(draw)).decode()) for title, draw in pictures],
        snippets=snippets(summary),
        samples=newest_samples(out_dir),
    )
    report = out_dir / "report.html"
    report.write_text(html, encoding="utf-8")
    if not steps:
        return [report]
    image = out_dir / ("loss.png" if summary["algorithm"] == "sft" else "reward.png")
    image.write_bytes(plots.to_png(lambda: plots.outcome(rows, summary["algorithm"], title=summary["job"])))
    return [report, image]


def tiles(summary: Mapping[str, Any], steps: Sequence[Row]) -> list[tuple[str, str]]:
    """The figures that are read first, as (label, value)."""
    result = []
    if summary["eval_metric"] is not None:
        label = f"held-out {summary['eval_metric']}, {summary['eval_rows']:,} rows"
        result.append((label, f"{figure(summary['eval_before'])} → {figure(summary['eval_after'])}"))
    elif steps and summary["algorithm"] != "sft":
        result.append(
            ("reward, first → last", f"{figure(steps[0]['reward_mean'])} → {figure(steps[-1]['reward_mean'])}")
        )
    result.append(("steps", f"{summary['step']:,} / {summary['total_steps']:,}"))
    result.append(("training", duration(summary["train_seconds"])))
    if steps:
        tokens = sum(row["tokens"] for row in steps)
        result.append(
            ("tokens a second", f"{tokens / summary['train_seconds']:,.0f}" if summary["train_seconds"] else "–")
        )
    result.append(("trainable parameters", f"{summary['adapter']['trainable_parameters']:,}"))
    return result


def facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The rows of the summary table."""
    adapter = summary["adapter"]
    share = adapter["trainable_parameters"] / adapter["total_parameters"]
    resumed = (
        "" if summary["resumed_from_step"] is None else f", the last start after step {summary['resumed_from_step']:,}"
    )
    rows = [
        ("Job", summary["job"]),
        ("Base model", summary["base_model"] + (f" @ {summary['base_revision']}" if summary["base_revision"] else "")),
        ("Algorithm", summary["algorithm"]),
        (
            "Adapter",
            f"{adapter['type']}, rank {adapter['rank']}, alpha {adapter['alpha']}, on {len(adapter['modules'])} modules",
        ),
        ("Modules", "\n".join(collapse_layers(adapter["modules"]))),
        (
            "Parameters",
            f"{adapter['trainable_parameters']:,} trainable of {adapter['total_parameters']:,} ({share:.2%})",
        ),
        ("Steps", f"{summary['step']:,} of {summary['total_steps']:,}{resumed}"),
    ]
    if summary["eval_metric"] is not None:
        before, after = figure(summary["eval_before"]), figure(summary["eval_after"])
        rows.append(
            (f"Held-out {summary['eval_metric']}", f"{before} before, {after} after ({summary['eval_rows']:,} rows)")
        )
    if summary["mean_abs_logprob_diff"] is not None:
        mean, worst = summary["mean_abs_logprob_diff"], summary["worst_mean_abs_logprob_diff"]
        rows.append(
            (
                "Log-probability difference",
                f"{mean:.1e} nats on average, {worst:.1e} in the worst step (vLLM against trainer)",
            )
        )
    total = "" if summary["total_seconds"] is None else f", {duration(summary['total_seconds'])} with start-up"
    rows.append(("Time", f"{duration(summary['train_seconds'])} training{total}"))
    if startup := summary["startup"]:
        token = (
            ""
            if startup["first_token_seconds"] is None
            else f"first token after {startup['first_token_seconds']:.1f} s, "
        )
        rows.append(("Last start", f"{token}first update after {startup['first_update_seconds']:.1f} s"))
    rows.append(("Adapter URI", summary["adapter_uri"] or "none was published"))
    return rows


def phase_table(steps: Sequence[Row]) -> list[tuple[str, float, float]]:
    """Phase, its seconds in all steps together, and its share of them, 0 to 1; phases without any are left out."""
    totals = [(phase, sum(row["seconds"].get(phase, 0.0) for row in steps)) for phase in PHASES]
    everything = sum(seconds for _, seconds in totals)
    return [(phase.replace("_", "/"), seconds, seconds / everything) for phase, seconds in totals if seconds > 0]


def start_table(startup: Mapping[str, Any] | None) -> list[tuple[str, str, float, float, float]]:
    """The parts of the last start: name, process, seconds, and where its bar begins and how long it is, 0 to 1 of the whole start."""
    if startup is None:
        return []
    whole = startup["first_update_seconds"]
    bars = [(part, min(1.0, max(0.0, part["begin"] / whole))) for part in startup["parts"]]
    return [(p["name"], p["who"], p["seconds"], left, min(1.0 - left, p["seconds"] / whole)) for p, left in bars]


def snippets(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """How to load the adapter, as (title, code); nothing where none was published."""
    if summary["adapter_uri"] is None:
        return []
    return [
        *(("Download", command) for command in download_commands(summary)),
        ("PEFT", peft_snippet(summary)),
        ("vLLM", vllm_command(summary)),
    ]


def figure(value: float | None) -> str:
    """A score or loss for people."""
    return "–" if value is None else f"{value:.3f}"
