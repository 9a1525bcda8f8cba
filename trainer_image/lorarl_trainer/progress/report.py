"""report.html and reward.png or loss.png, made from metrics.jsonl, samples.jsonl and run_summary.json alone."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lorarl_trainer.progress.console import collapse_layers, first_times
from lorarl_trainer.progress.events import PHASES
from lorarl_trainer.progress.records import METRICS, Row, read_rows, read_summary
from lorarl_trainer.progress.samples import newest_samples
from lorarl_trainer.progress.start_bar import duration
from lorarl_trainer.progress.usage import download_commands, peft_snippet, vllm_command

TEMPLATE = "report.html.jinja"


def write_report(out_dir: Path) -> list[Path]:
    """Write `out_dir`/report.html, which needs no network, and reward.png (loss.png for sft).

    Returns:
        The files that were written.

    Raises:
        FileNotFoundError: `out_dir` has no run_summary.json.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    # Not at the top: importing matplotlib takes a second, which would delay the start of a run.
    from lorarl_trainer.progress import plots

    def encoded(draw: Callable[[], Any]) -> str:
        return base64.b64encode(plots.to_svg(draw)).decode()

    summary, rows = read_summary(out_dir), read_rows(out_dir / METRICS)
    steps = [row for row in rows if "loss" in row]
    algorithm = summary["algorithm"]
    pictures: list[tuple[str, Callable[[], Any]]] = []
    if steps:
        pictures.append(("Loss" if algorithm == "sft" else "Reward", lambda: plots.outcome(rows, algorithm)))
        if plots.has_values(steps, "mean_abs_logprob_diff"):
            pictures.append(("KL and log-probability difference", lambda: plots.divergence(steps)))
        if plots.has_values(steps, "response_tokens_mean"):
            pictures.append(("Response length", lambda: plots.response_length(steps)))
        pictures.append(("Where a step's time goes", lambda: plots.phase_seconds(steps)))
    names = plots.unplotted_metrics(steps, algorithm)
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
        run_table=run_table(summary),
        phase_table=phase_table(steps),
        startup_table=startup_table(summary["startup"]),
        pictures=[(title, encoded(draw)) for title, draw in pictures],
        more_metrics=encoded(lambda: plots.small_multiples(steps, names)) if names else None,
        snippets=snippets(summary),
        samples=newest_samples(out_dir),
    )
    report = out_dir / "report.html"
    report.write_text(html, encoding="utf-8")
    if not steps:
        return [report]
    image = out_dir / ("loss.png" if algorithm == "sft" else "reward.png")
    image.write_bytes(plots.to_png(lambda: plots.outcome(rows, algorithm, title=summary["job"])))
    return [report, image]


def tiles(summary: Mapping[str, Any], steps: Sequence[Row]) -> list[tuple[str, str]]:
    """Return the numbers at the top of the report, as (label, value)."""
    result = []
    if summary["eval_metric"] is not None:
        label = f"held-out {summary['eval_metric']}, {summary['eval_rows']:,} rows"
        result.append((label, f"{format_metric(summary['eval_before'])} → {format_metric(summary['eval_after'])}"))
    elif steps and summary["algorithm"] != "sft":
        first, last = (format_metric(row["reward_mean"]) for row in (steps[0], steps[-1]))
        result.append(("mean reward, first → last step", f"{first} → {last}"))
    result.append(("steps", f"{summary['step']:,} / {summary['total_steps']:,}"))
    result.append(("training", duration(summary["train_seconds"])))
    if steps:
        tokens = sum(row["tokens"] for row in steps)
        result.append(
            ("tokens per second", f"{tokens / summary['train_seconds']:,.0f}" if summary["train_seconds"] else "–")
        )
    result.append(("trainable parameters", f"{summary['adapter']['trainable_parameters']:,}"))
    return result


def run_table(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of the table "Run", as (label, value)."""
    adapter, modules = summary["adapter"], summary["adapter"]["modules"]
    share = adapter["trainable_parameters"] / adapter["total_parameters"]
    resumed = (
        "" if summary["resumed_from_step"] is None else f", last resumed after step {summary['resumed_from_step']:,}"
    )
    rows = [
        ("Job", summary["job"]),
        ("Base model", summary["base_model"] + (f" @ {summary['base_revision']}" if summary["base_revision"] else "")),
        ("Algorithm", summary["algorithm"]),
        ("Adapter", f"{adapter['type']}, rank {adapter['rank']}, alpha {adapter['alpha']}, on {len(modules)} modules"),
        ("Modules", "\n".join(collapse_layers(modules))),
        (
            "Parameters",
            f"{adapter['trainable_parameters']:,} trainable of {adapter['total_parameters']:,} ({share:.2%})",
        ),
        ("Steps", f"{summary['step']:,} of {summary['total_steps']:,}{resumed}"),
    ]
    if summary["eval_metric"] is not None:
        before, after = format_metric(summary["eval_before"]), format_metric(summary["eval_after"])
        rows.append(
            (f"Held-out {summary['eval_metric']}", f"{before} before, {after} after ({summary['eval_rows']:,} rows)")
        )
    if summary["mean_abs_logprob_diff"] is not None:
        mean, worst = summary["mean_abs_logprob_diff"], summary["worst_mean_abs_logprob_diff"]
        rows.append(
            (
                "Log-probability difference",
                f"{mean:.1e} nats on average, {worst:.1e} in the worst step (vLLM vs. trainer)",
            )
        )
    total = "" if summary["total_seconds"] is None else f", {duration(summary['total_seconds'])} including start-up"
    rows.append(("Time", f"{duration(summary['train_seconds'])} training{total}"))
    if startup := summary["startup"]:
        rows.append(("Last start", first_times(startup)))
    rows.append(("Adapter URI", summary["adapter_uri"] or "no adapter was published"))
    return rows


def phase_table(steps: Sequence[Row]) -> list[tuple[str, float, float]]:
    """Return each phase with its seconds in all steps and its share of the time, 0 to 1.

    Phases that took no time are left out.
    """
    totals = [(phase, sum(row["seconds"].get(phase, 0.0) for row in steps)) for phase in PHASES]
    everything = sum(seconds for _, seconds in totals)
    return [(phase.replace("_", "/"), seconds, seconds / everything) for phase, seconds in totals if seconds > 0]


def startup_table(startup: Mapping[str, Any] | None) -> list[tuple[str, str, float, float, float]]:
    """Return the parts of the last start: name, process, seconds, and the left end and width of the bar.

    Left end and width are shares of the whole start, 0 to 1.
    """
    if startup is None:
        return []
    whole = startup["first_update_seconds"]
    bars = [(part, min(1.0, max(0.0, part["begin"] / whole))) for part in startup["parts"]]
    return [(p["name"], p["who"], p["seconds"], left, min(1.0 - left, p["seconds"] / whole)) for p, left in bars]


def snippets(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return how to load the adapter, as (title, code); an empty list if none was published."""
    if summary["adapter_uri"] is None:
        return []
    return [
        *(("Download", command) for command in download_commands(summary)),
        ("PEFT", peft_snippet(summary)),
        ("vLLM", vllm_command(summary)),
    ]


def format_metric(value: float | None) -> str:
    """Return a score or loss with three decimals."""
    return "–" if value is None else f"{value:.3f}"
