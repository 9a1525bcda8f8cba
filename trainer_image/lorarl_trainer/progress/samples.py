"""samples.jsonl: whole groups of every step, with rewards and advantages, and some completions of each evaluation."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lorarl_trainer.progress.events import Event, RunStarted, Sampled
from lorarl_trainer.progress.metrics_file import Row, StepLines
from lorarl_trainer.progress.shown import ScoredSample

SAMPLES = "samples.jsonl"
MOST_BYTES = 4_000_000
"""How much of samples.jsonl the report takes in. Of a longer run it has every second step, or every fourth, ..."""
_BEGIN = re.compile(rb'\{"step": (\d+), "evaluation": (true|false)')


class SamplesFile:
    """Writes samples.jsonl, one line per completion."""

    name = SAMPLES

    def __init__(self, out_dir: Path) -> None:
        self._lines = StepLines(out_dir / SAMPLES)

    def on_event(self, event: Event) -> None:
        """Append a step's samples."""
        match event:
            case RunStarted():
                self._lines.start(event)
            case Sampled():
                named = {"name": event.name} if event.name else {}
                self._lines.append(
                    *(
                        {"step": event.step, "evaluation": event.evaluation, **named, **_line(sample)}
                        for sample in event.samples
                    )
                )

    def close(self) -> None:
        self._lines.close()


def _line(sample: ScoredSample) -> dict[str, Any]:
    line = asdict(sample)
    if not sample.further:
        del line["further"]
    return line


def samples_by_step(out_dir: Path, most_bytes: int = MOST_BYTES) -> dict[str, Any]:
    """Return the samples for the report: {"training": [...], "held_out": [...], "left_out": ["training"]}.

    `left_out` names the lists that lack steps. Each list has {"step": ..., "groups": [...]} by step. A group has its
    row, prompt and answer once, and its completions.
    """
    lines: dict[bool, dict[int, list[bytes]]] = {False: defaultdict(list), True: defaultdict(list)}
    path = out_dir / SAMPLES
    for line in path.read_bytes().splitlines() if path.exists() else ():
        if found := _BEGIN.match(line):
            lines[found[2] == b"true"][int(found[1])].append(line)
    kept = {evaluation: thinned(by_step, most_bytes // 2) for evaluation, by_step in lines.items()}
    return {
        "training": [{"step": step, "groups": _groups(lines)} for step, lines in kept[False].items()],
        "held_out": [{"step": step, "groups": _groups(lines)} for step, lines in kept[True].items()],
        "left_out": [
            "held_out" if evaluation else "training"
            for evaluation, by_step in lines.items()
            if len(kept[evaluation]) < len(by_step)
        ],
    }


def thinned(by_step: Mapping[int, list[bytes]], most_bytes: int) -> dict[int, list[bytes]]:
    """Return the steps in order, at most so many bytes: of too many every second, fourth, ... and always the last."""
    steps = sorted(by_step)
    kept = steps
    while len(kept) > 2 and sum(len(line) for step in kept for line in by_step[step]) > most_bytes:
        kept = sorted({*kept[::2], steps[-1]})
    return {step: by_step[step] for step in kept}


def _groups(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    groups: dict[tuple[str, int], dict[str, Any]] = {}
    for number, line in enumerate(lines):
        try:
            row: Row = json.loads(line)
        except ValueError:
            continue  # a kill or a full disk cut the line short
        group = groups.setdefault(
            (row.get("name", ""), row.get("group", number)),
            {
                "name": row.get("name", ""),
                "row": row.get("row"),
                "model_prompt": row.get("model_prompt") or _text(row["prompt"]),
                "answer": row["answer"],
                "completions": [],
            },
        )
        completion = {"text": row["completion"], "reward": row["reward"], "tokens": row["tokens"]}
        optional = {name: row.get(name) for name in ("advantage", "truncated", "components", "failure", "further")}
        group["completions"].append(completion | {name: value for name, value in optional.items() if value})
    return list(groups.values())


def _text(prompt: str | list[dict[str, Any]]) -> str:
    return (
        prompt
        if isinstance(prompt, str)
        else "\n".join(f"{message['role']}: {message['content']}" for message in prompt)
    )
