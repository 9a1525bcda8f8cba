"""Rollouts and their rewards: each completion is scored when it ends, while others are still being generated."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np

from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.errors import StaleAdapterError
from lorarl_trainer.progress import FurtherSequence, ScoredSample
from lorarl_trainer.protocols.workers import Generators
from lorarl_trainer.rewards.scores import Cause, Failure, Outcome, Scorer, ToScore, collect
from lorarl_trainer.samples.arrays import Ints, Rewards
from lorarl_trainer.samples.occupancy import Occupancy
from lorarl_trainer.samples.requests import GenerationRequest
from lorarl_trainer.samples.sample import Completion

type End = Literal["done", "turns", "tokens"] | Cause
"""What ended an episode: its environment, a limit of turns or of tokens, or a failure."""


@dataclass(frozen=True)
class ToolUse:
    """The tool calls of an episode.

    Attributes:
        malformed: those that named no tool, or had no arguments that it takes.
        failed: those that raised, or took too long.
    """

    calls: int = 0
    malformed: int = 0
    failed: int = 0


@dataclass(frozen=True)
class Course:
    """How an episode went.

    Attributes:
        turns: turns that the model made.
        seconds: that the environment took.
        tools: None without tools.
        versions: of the adapter that made its turns.
        sequences: of tokens, in which its turns are.
    """

    turns: int
    seconds: float
    ended: End
    tools: ToolUse | None = None
    versions: int = 1
    sequences: int = 1


@dataclass(frozen=True)
class Further:
    """A sequence of an episode beside its first one.

    Attributes:
        row: with what opened it as its prompt.
        completion: all after the prompt. What it shares with earlier sequences is masked.
        text: that, with special tokens.
    """

    row: EncodedRow
    completion: Completion
    text: str = ""


@dataclass(frozen=True)
class ScoredRollouts:
    """One completion per row, in the order of the rows.

    Attributes:
        rows: [S]; with an environment, each with what opened its episode as its prompt.
        completions: [S].
        texts: [S]; the completions as the reward sees them.
        rewards: [S]; NaN where a completion could not be scored.
        failures: those completions, by cause.
        outcomes: [S]; the rewards with their components, or why there is none.
        seconds: by phase. `reward` is how much longer scoring took than generation.
        courses: [S]; how the episodes went. Empty without an environment.
        further: [S]; the sequences of each episode beside the completion, its first one. Empty if none has any.
    """

    rows: Sequence[EncodedRow]
    completions: list[Completion]
    texts: list[str]
    rewards: Rewards
    failures: Mapping[Cause, Failure]
    outcomes: Sequence[Outcome]
    seconds: Mapping[str, float]
    occupancy: Occupancy
    courses: Sequence[Course] = ()
    further: Sequence[Sequence[Further]] = ()

    @property
    def counts(self) -> list[int]:
        """How many sequences each episode has, [S]; empty if each has one."""
        return [1 + len(each) for each in self.further]

    @property
    def lengths(self) -> Ints:
        """Tokens after the prompt, of all sequences of an episode together, [S]."""
        further = self.further or [()] * len(self.completions)
        return np.array(
            [
                len(first.tokens) + sum(len(one.completion.tokens) for one in each)
                for first, each in zip(self.completions, further, strict=True)
            ]
        )

    @property
    def unscored(self) -> int:
        """Completions that could not be scored."""
        return sum(failure.count for failure in self.failures.values())

    def chosen(self, indices: Sequence[int]) -> ScoredRollouts:
        """Return some of them, in the order of the indices. The failures remain those of all."""
        return replace(
            self,
            rows=[self.rows[index] for index in indices],
            completions=[self.completions[index] for index in indices],
            texts=[self.texts[index] for index in indices],
            rewards=self.rewards[list(indices)],
            outcomes=[self.outcomes[index] for index in indices],
            courses=[self.courses[index] for index in indices] if self.courses else (),
            further=[self.further[index] for index in indices] if self.further else (),
        )


def joined(rounds: Sequence[ScoredRollouts], field: str) -> ScoredRollouts:
    """Return what was generated in several rounds, as one. Failures name `field` of the manifest."""
    outcomes = [outcome for one in rounds for outcome in one.outcomes]
    scores = collect(outcomes, field)
    return ScoredRollouts(
        rows=[row for one in rounds for row in one.rows],
        completions=[completion for one in rounds for completion in one.completions],
        texts=[text for one in rounds for text in one.texts],
        rewards=scores.rewards,
        failures=scores.failures,
        outcomes=outcomes,
        seconds=added_up(one.seconds for one in rounds),
        occupancy=Occupancy.over(one.occupancy for one in rounds),
        courses=[course for one in rounds for course in one.courses],
        further=[each for one in rounds for each in one.further or [()] * len(one.rows)]
        if any(one.further for one in rounds)
        else (),
    )


def added_up(rounds: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the seconds of several rounds by phase."""
    seconds: dict[str, float] = {}
    for phase, spent in (entry for one in rounds for entry in one.items()):
        seconds[phase] = seconds.get(phase, 0.0) + spent
    return seconds


class Scoring:
    """Scores completions while others are still being generated: within `async with`."""

    def __init__(
        self,
        scorer: Scorer,
        decode: Callable[[Sequence[Any]], list[str]],
        scored: Callable[[int, Outcome], None],
    ) -> None:
        """Give each outcome to `scored`, with the index that the completion had in `begin`."""
        self._scorer, self._decode, self._scored = scorer, decode, scored
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop what is still being scored."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def begin(self, indices: Sequence[int], rows: Sequence[EncodedRow], completions: Sequence[Completion]) -> list[str]:
        """Begin to score completions that have ended; return their texts."""
        texts = self._decode([completion.tokens for completion in completions])
        samples = [
            ToScore(
                row.row.prompt,
                text,
                row.row.answer,
                row.row.raw,
                not completion.finished,
                len(completion.tokens),
                row.prompt_ids,
                completion.tokens,
            )
            for row, text, completion in zip(rows, texts, completions, strict=True)
        ]
        self._tasks.append(asyncio.create_task(self._score(indices, samples)))
        return texts

    async def all(self) -> None:
        """Wait until all are scored. Raises LorarlError if scoring is impossible."""
        await asyncio.gather(*self._tasks)

    async def _score(self, indices: Sequence[int], samples: Sequence[ToScore]) -> None:
        for index, outcome in zip(indices, await self._scorer.score(samples), strict=True):
            self._scored(index, outcome)


async def generate_and_score(
    workers: Generators,
    scorer: Scorer,
    decode: Callable[[Sequence[Any]], list[str]],
    rows: Sequence[EncodedRow],
    requests: Sequence[GenerationRequest],
    adapter_version: int,
) -> ScoredRollouts:
    """Generate the completion that is wanted of each row, by this adapter version, and score it.

    No other generates any, unless the requests let newer ones.

    Raises:
        InputError: not one could be scored.
        StaleAdapterError: an adapter version generated a completion that may not.
        LorarlError: a worker failed.
    """
    completions: dict[int, Completion] = {}
    texts: dict[int, str] = {}
    outcomes: dict[int, Outcome] = {}
    last_arrival = time.perf_counter()

    def take(indices: Sequence[int], ended: Sequence[Completion]) -> None:
        nonlocal last_arrival
        last_arrival = time.perf_counter()
        require_version(ended, adapter_version, newer=requests[indices[0]].newer)
        completions.update(zip(indices, ended, strict=True))
        texts.update(zip(indices, scoring.begin(indices, [rows[index] for index in indices], ended), strict=True))

    async with Scoring(scorer, decode, outcomes.__setitem__) as scoring:
        await workers.submit(requests, take)
        generated = await workers.results()
        await scoring.all()
    in_order = [outcomes[index] for index in range(len(rows))]
    scores = collect(in_order, scorer.field)
    return ScoredRollouts(
        rows=rows,
        completions=[completions[index] for index in range(len(rows))],
        texts=[texts[index] for index in range(len(rows))],
        rewards=scores.rewards,
        failures=scores.failures,
        outcomes=in_order,
        seconds={**generated.seconds, "reward": time.perf_counter() - last_arrival},
        occupancy=generated.occupancy,
    )


def shown_samples(
    rollouts: ScoredRollouts,
    decode_prompts: Callable[[Sequence[Any]], list[str]],
    *,
    group_size: int,
    limit: int,
) -> tuple[ScoredSample, ...]:
    """Pick rollouts for people: as many of the first whole groups as `limit` completions allow, and at least one.

    Args:
        rollouts: all of a step or of an evaluation, group by group.
        decode_prompts: turns prompts' token ids into texts, with special tokens.
        group_size: completions per prompt.
        limit: `tracking.samplesPerStep`; 0 for none.
    """
    rows = rollouts.rows
    groups = min(len(rows) // group_size, max(1, limit // group_size)) if limit else 0
    prompts = decode_prompts([rows[group * group_size].prompt_ids for group in range(groups)])
    return tuple(
        ScoredSample(
            group=index // group_size,
            row=rows[index].row.number,
            prompt=rows[index].row.prompt,
            model_prompt=prompts[index // group_size],
            completion=rollouts.texts[index],
            answer=rows[index].row.answer,
            reward=None if np.isnan(reward := float(rollouts.rewards[index])) else reward,
            components=rollouts.outcomes[index].components,
            failure=rollouts.outcomes[index].failure,
            tokens=len(rollouts.completions[index].tokens),
            truncated=not rollouts.completions[index].finished,
            further=_shown(rollouts.further[index], decode_prompts) if rollouts.further else (),
        )
        for index in range(groups * group_size)
    )


def _shown(
    further: Sequence[Further], decode_prompts: Callable[[Sequence[Any]], list[str]]
) -> tuple[FurtherSequence, ...]:
    if not further:  # tokenizers take no empty lists
        return ()
    prompts = decode_prompts([one.row.prompt_ids for one in further])
    return tuple(
        FurtherSequence(
            model_prompt=prompt,
            completion=one.text,
            tokens=len(one.completion.tokens),
            truncated=not one.completion.finished,
        )
        for prompt, one in zip(prompts, further, strict=True)
    )


def require_version(completions: Sequence[Completion], version: int, *, newer: bool = False) -> None:
    """Refuse rollouts of any adapter but this version, or with `newer` of any before it: never stale, never silent."""
    found = {completion.adapter_version for completion in completions}
    if found != {version} and not (newer and min(found) >= version):
        expected = f"{version} or newer ones" if newer else f"only {version}"
        raise StaleAdapterError(
            f"rollouts were generated by adapter versions {sorted(found)}, expected {expected}; please report this"
        )
