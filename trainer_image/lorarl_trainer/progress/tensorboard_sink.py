"""TensorBoard: scalars in groups, the settings as hyperparameters, and the samples as texts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from lorarl_trainer.progress.events import EvalDone, Event, RunStarted, Sampled, StepDone, scalars_of
from lorarl_trainer.progress.settings import flat_settings
from lorarl_trainer.progress.shown import ScoredSample

_REWARD = {
    "reward_mean": "reward/mean",
    "reward_std": "reward/std",
    "reward_failures": "reward/failures",
    "signal_share": "reward/signal_share",
}
_PERFORMANCE = ("tokens", "tokens_per_second", "seconds/", "engine/", "gpu_memory/")
"""Columns of metrics.jsonl, or what they begin with."""
SHOWN = 8
"""Samples of a step in a text: TensorBoard keeps few texts, and shows them below each other."""


def tag_of(name: str) -> str:
    """Return the tag of a column of metrics.jsonl. TensorBoard makes a group of the tags with one first part."""
    if name.startswith("eval_"):
        return f"eval/{name.removeprefix('eval_')}"
    if name.startswith("reward/"):
        return f"reward/components/{name.removeprefix('reward/')}"
    if name.startswith(_PERFORMANCE):
        return f"perf/{name}"
    return _REWARD.get(name, f"train/{name}")


class TensorBoardSink:
    """Writes a TensorBoard event file with tensorboard's own writer."""

    name = "TensorBoard"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None

    def on_event(self, event: Event) -> None:
        """Open the file when the run starts; add each step, evaluation and sample."""
        match event:
            case RunStarted():
                self._open(event)
            case StepDone() | EvalDone():
                from tensorboard.compat.proto.summary_pb2 import Summary

                values = [Summary.Value(tag=tag_of(name), simple_value=x) for name, x in scalars_of(event).items()]
                self._add(event.step, summary=Summary(value=values))
            case Sampled() if event.samples:
                kind = f"held_out/{event.name}".rstrip("/") if event.evaluation else "training"
                self._add(event.step, summary=_text(f"samples/{kind}", markdown_of(event.samples[:SHOWN])))
            case _:
                pass

    def close(self) -> None:
        """Write what is left and close the file."""
        if self._writer is not None:
            self._writer.close()

    def _open(self, event: RunStarted) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if event.resumed_from_step is None:
            for old in self._folder.glob("events.out.tfevents.*"):
                old.unlink()
        self.close()
        self._writer = EventFileWriter(str(self._folder), flush_secs=10)
        if event.resumed_from_step is not None:
            # A session start makes TensorBoard drop the steps that are repeated.
            self._add(event.resumed_from_step + 1, session_log=SessionLog(status=SessionLog.START))
        (settings,) = flat_settings([event.manifest])
        named = {
            name: value if isinstance(value, bool | int | float) else str(value) for name, value in settings.items()
        }
        self._add(event.resumed_from_step or 0, summary=hparams_pb(named))

    def _add(self, step: int, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event as Record

        self._writer.add_event(Record(wall_time=time.time(), step=step, **content))


def markdown_of(samples: tuple[ScoredSample, ...]) -> str:
    """Return samples as Markdown: each prompt once, then its completions with rewards. Texts are shown literally."""
    parts, group = [], None
    for sample in samples:
        if sample.group != group:
            group = sample.group
            parts += [f"**Row {sample.row}**, answer: {_code(sample.answer)}", _block(sample.model_prompt)]
        reward = "no reward" if sample.reward is None else f"reward {sample.reward:.4g}"
        advantage = "" if sample.advantage is None else f", advantage {sample.advantage:+.2f}"
        cut = ", cut off" if sample.truncated else ""
        parts += [f"{reward}{advantage}, {sample.tokens} tokens{cut}", _block(sample.completion)]
        for number, one in enumerate(sample.further, 2):
            parts += [f"sequence {number} of the episode begins with", _block(one.model_prompt)]
            parts += [f"and has {one.tokens} tokens", _block(one.completion)]
    return "\n\n".join(parts)


def _block(text: str) -> str:
    """Return an indented block of code: no text can end it, as it could a fence of backticks."""
    return "\n".join(f"    {line}" for line in text.split("\n"))


def _code(text: str | None) -> str:
    return "none" if text is None else f"`{' '.join(text.replace('`', chr(39)).split())}`"


def _text(tag: str, text: str) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING
    from tensorboard.plugins.text.metadata import create_summary_metadata

    tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()])
    metadata = create_summary_metadata(display_name=tag, description="")
    return Summary(value=[Summary.Value(tag=tag, tensor=tensor, metadata=metadata)])
