"""`lorarl chat --row` of a job with an environment: base model and adapter each play the episode of the row."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from lorarl_trainer.data.rows import Row
from lorarl_trainer.launch import inputs
from lorarl_trainer.launch.rollouts import episodes_of
from lorarl_trainer.rewards.scorer import open_scorers
from lorarl_trainer.rewards.source import fetched_sources
from lorarl_trainer.rollout.collect import ScoredRollouts
from lorarl_trainer.rollout.evaluation import Evaluation
from lorarl_trainer.samples.sampling import Sampling
from lorarl_trainer.storage.secrets import secrets_on_demand
from lorarl_trainer.trained_adapters.model import AdaptedModel, Decoding
from lorarl_trainer.trained_adapters.play import play
from lorarl_trainer.trained_adapters.source import Source


@dataclass(frozen=True)
class PlayedRow:
    """The episode of a row, as base model and adapter played it.

    Attributes:
        opening: what opened it, as the model saw it.
        texts: all that followed, of the base model and of the adapter, with the template's marks.
        ends: the reward of each, and how its episode ended.
    """

    opening: str
    texts: tuple[str, str]
    ends: tuple[str, str]

    def opening_lines(self) -> Iterator[str]:
        """Yield what opened it, as lines that differ from what was played."""
        yield "The episode begins with:"
        yield from (f"  | {line}" for line in self.opening.splitlines())

    @property
    def last_line(self) -> str:
        """How both ended."""
        return f"reward:  base {self.ends[0]}; adapter {self.ends[1]}"


def play_row(source: Source, model: AdaptedModel, row: Row, path: str, sampling: Sampling | None) -> PlayedRow:
    """Play the episode of a training row twice. `path`: of the row's source in the manifest.

    The limits are those of the job.

    Raises:
        InputError: the environment cannot be used, or fails in an episode.
    """
    assert source.job is not None, "it has the row"
    job, secrets = source.job.spec, secrets_on_demand(source.job.spec)
    with (
        fetched_sources(job, secrets) as (spec, sources),
        open_scorers(spec, source.folder, sources=sources) as scorers,
    ):
        asyncio.run(scorers.ready())
        assert scorers.environment is not None, "the job has one"
        shown = replace(row, tools=scorers.environment.tools) if scorers.environment.tools else row
        encoder = inputs.prompt_encoder(spec, model.vocabulary)
        rows, _ = inputs.encode_source(spec, spec.data.sources[path], [shown], path, encoder)
        episodes = episodes_of(spec, scorers, model.vocabulary, together=True)
        evaluation = Evaluation("", rows, episodes)
        decoding = Decoding(1, spec.rollout.max_response_tokens, sampling, tuple(spec.rollout.stop))

        def one(name: str) -> ScoredRollouts:
            with model.plain() if name == "base" else contextlib.nullcontext():
                return asyncio.run(play(name, model, decoding, episodes, evaluation, spec.trainer.seed))

        base, adapter = one("base"), one("adapter")
    opening = str(model.tokenizer.decode(base.rows[0].prompt_ids))
    return PlayedRow(opening, (_text(base, model), _text(adapter, model)), (_ended(base), _ended(adapter)))


def _text(rollouts: ScoredRollouts, model: AdaptedModel) -> str:
    """Return all that followed the opening; of an agent with several sequences, each of those after it."""
    parts = [rollouts.texts[0]]
    for number, one in enumerate(rollouts.further[0] if rollouts.further else (), 2):
        parts.append(f"\n\nsequence {number}:\n{model.tokenizer.decode(one.row.prompt_ids)}{one.text}")
    return "".join(parts)


def _ended(rollouts: ScoredRollouts) -> str:
    (course,) = rollouts.courses
    turns = f"{course.turns} turn{'s' * (course.turns != 1)}"
    turns += f" in {course.sequences} sequences" * (course.sequences > 1)
    return f"{float(rollouts.rewards[0]):g}, after {turns} ({course.ended})"
