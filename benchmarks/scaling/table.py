"""The table of several GPUs, from raw figures alone: what was reached of each target."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scaling.book import Record
from scaling.rows import CPU_ROWS, ROWS, Row
from side_by_side.report import mean, mfu

NEAR_BEST = 1.05
"""A layout may take so many times as long as the best one that was tried."""


def markdown(records: Sequence[Record]) -> str:
    """Return where and when the rows were measured, with the table: a line for each row."""
    by_name = {record["row"]: record for record in records}
    shown, what = (CPU_ROWS, "workers") if by_name.keys() & {row.name for row in CPU_ROWS} else (ROWS, "GPUs")
    lines = [
        *places(records),
        "",
        f"| row | {what} | seconds of a step | of linear | target | reached | met |",
        "|---|---|---|---|---|---|---|",
        *(line(row, by_name) for row in shown),
    ]
    return "\n".join(lines)


def places(records: Iterable[Record]) -> list[str]:
    """Return a line for each machine and commit, with its rows."""
    found: dict[str, list[str]] = {}
    for record in records:
        gpus = record["machine"]["gpus"]
        device = f"{gpus[0]['name']}, driver {record['driver']}" if gpus else "CPU"
        place = f"{record['date'][:10]}, {device}, {record['machine']['cpus']} cores, commit {record['commit']}"
        found.setdefault(place, []).append(record["row"])
    return [f"- {place}: {', '.join(names)}" for place, names in found.items()]


def line(row: Row, records: Mapping[str, Record]) -> str:
    """Return a row of the table."""
    target, goal = target_of(row), row.goal
    record = records.get(row.name)
    if record is None:
        return f"| {row.name} | {row.gpus} | | | {target} | not measured | |"
    seconds = "" if row.system == "pods" else f"{mean(record['run'], 'seconds'):.2f}"
    share = of_linear(row, records)
    linear = "" if share is None else f"{share:.2f}"
    reached, met = judged(row, records) if goal else ("", None)
    verdict = {None: "", True: "yes", False: "no"}[met]
    return f"| {row.name} | {row.gpus} | {seconds} | {linear} | {target} | {reached} | {verdict} |"


def target_of(row: Row) -> str:
    """Return what a row should reach, in words."""
    if row.goal is None:
        return ""
    return {
        "linear": f"{row.goal.bound:g} of linear",
        "layout": f"MFU {row.goal.bound:g}, within {NEAR_BEST - 1:.0%} of the best layout",
        "attention": f"MFU {row.goal.bound:g} with attention",
        "peer": f"{row.goal.bound:g} times as fast as TRL",
        "sync": f"adapter to {row.gpus - 1} engines in {row.goal.bound:g} ms",
        "pods": f"first token in {row.goal.bound:g} s, next step {LOST_SECONDS} s after a lost pod",
        "none": "runs",
    }[row.goal.kind]


LOST_SECONDS = 45


def judged(row: Row, records: Mapping[str, Record]) -> tuple[str, bool | None]:
    """Return what a row with a goal reached, and if that is enough; None if what it is compared with is missing."""
    assert row.goal is not None
    record, bound = records[row.name], row.goal.bound
    run = record["run"]
    match row.goal.kind:
        case "linear":
            share = of_linear(row, records)
            return ("no first row", None) if share is None else (f"{share:.2f}", share >= bound)
        case "layout":
            return judged_layout(row, records)
        case "attention":
            share = mfu(record, run, attention=True)
            return f"{share:.2f}", share >= bound
        case "peer":
            ours = records.get(f"7b-equal-{row.gpus}")
            if ours is None:
                return f"no row 7b-equal-{row.gpus}", None
            factor = mean(run, "seconds") / mean(ours["run"], "seconds")
            return f"{factor:.1f}", factor >= bound
        case "sync":
            milliseconds = 1000 * mean(run, "sync")
            return f"{milliseconds:.1f} ms", milliseconds <= bound
        case "pods":
            token, step = run["first_token_seconds"], run["lost"]["seconds"]
            return f"{token:.0f} s, {step:.0f} s", token <= bound and step <= LOST_SECONDS
        case "none":
            return "ran", True


def judged_layout(row: Row, records: Mapping[str, Record]) -> tuple[str, bool | None]:
    """Return the MFU of the planned layout, and its time over that of the best one that was tried."""
    record = records[row.name]
    others = [records.get(one.name) for one in ROWS if (one.group, one.gpus) == (row.group, row.gpus)]
    seconds = [mean(one["run"], "seconds") for one in others if one]
    share, slower = mfu(record, record["run"]), mean(record["run"], "seconds") / min(seconds)
    met = share >= row.goal.bound and slower <= NEAR_BEST if row.goal and None not in others else None
    return f"{share:.2f}, {slower:.2f} times the best of {len(seconds)}", met


def of_linear(row: Row, records: Mapping[str, Record]) -> float | None:
    """Return a row's answer tokens per second and GPU over those of its group's first row; None without that."""
    if row.system != "lorarl" or row.variant:
        return None
    first = next(one for one in (*ROWS, *CPU_ROWS) if one.group == row.group)
    if first is row or first.name not in records or first.goal is not None:
        return None
    return per_gpu(records[row.name]["run"], row.gpus) / per_gpu(records[first.name]["run"], first.gpus)


def per_gpu(run: Mapping[str, Any], gpus: int) -> float:
    """Return the answer tokens per second and GPU."""
    return mean(run, "response_tokens") / mean(run, "seconds") / gpus
