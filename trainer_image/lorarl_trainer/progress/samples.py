"""samples.jsonl: whole groups of every step, with rewards and advantages, and some completions of each evaluation."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from lorarl_trainer.progress.events import Event, RunStarted, Sampled
from lorarl_trainer.progress.records import StepLines, read_lines

SAMPLES = "samples.jsonl"


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
                self._lines.append(
                    *(
                        {"step": event.step, "evaluation": event.evaluation, **asdict(sample)}
                        for sample in event.samples
                    )
                )

    def close(self) -> None:
        """Close the file."""
        self._lines.close()


def newest_samples(out_dir: Path) -> list[dict[str, Any]]:
    """Return the samples of the newest training step, for the report."""
    rows = [row for row in read_lines(out_dir / SAMPLES) if not row["evaluation"]]
    return [{**row, "prompt": _text(row["prompt"])} for row in rows if row["step"] == rows[-1]["step"]]


def _text(prompt: str | list[dict[str, Any]]) -> str:
    return (
        prompt
        if isinstance(prompt, str)
        else "\n".join(f"{message['role']}: {message['content']}" for message in prompt)
    )
