"""Episodes of many turns, exact to the token: the model's turns as they were generated, and between them the bridges.

An episode grows at its end alone. What the model made is never encoded again, so trainer and engine see the same
tokens. Only those are trained. While one episode waits for its environment, the engines generate turns of others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.data.bridge import Bridge
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.errors import InputError
from lorarl_trainer.protocols.workers import Workers
from lorarl_trainer.rewards.environment.environment import FIELD, Environment, Episode, EpisodeFailedError
from lorarl_trainer.rewards.scores import Outcome, collect
from lorarl_trainer.rollout.collect import Course, End, ScoredRollouts, require_version
from lorarl_trainer.rollout.turns import Turns
from lorarl_trainer.samples.requests import GenerationRequest
from lorarl_trainer.samples.sample import Completion


@dataclass
class _Played:
    """An episode so far.

    Attributes:
        row: with what opened it as its prompt.
        turns: the model's, each without what came before.
        response: tokens after the prompt.
        mask: which of them the model made.
        rewards: those that turns got.
        components: the last value of each.
        seconds: that its environment took.
    """

    row: EncodedRow
    turns: list[Completion] = field(default_factory=list)
    response: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    components: dict[str, float] = field(default_factory=dict)
    ended: End = "done"
    outcome: Outcome | None = None
    seconds: float = 0.0

    def append(self, tokens: Sequence[int], *, made: bool) -> None:
        """Add tokens at the end, which the model made or not."""
        self.response += tokens
        self.mask += [made] * len(tokens)

    def take_back(self) -> None:
        """Remove the last text of the environment, if no turn follows it."""
        while self.mask and not self.mask[-1]:
            self.mask.pop()
            self.response.pop()

    @property
    def course(self) -> Course:
        """How it went."""
        return Course(len(self.turns), self.seconds, self.ended)

    def completion(self, version: int) -> Completion:
        """Return all after the prompt, by this adapter version."""
        kept = [turn.kept for turn in self.turns if turn.kept is not None]
        return Completion(
            tokens=np.array(self.response, np.int64),
            logprobs=np.concatenate([np.empty(0, np.float32), *(turn.logprobs for turn in self.turns)]),
            finished=self.ended != "tokens",
            adapter_version=version,
            kept=np.concatenate(kept) if kept and len(kept) == len(self.turns) else None,
            routing=self.turns[-1].routing if self.turns else None,
            mask=np.array(self.mask, np.bool_),
        )


@dataclass(frozen=True)
class Episodes:
    """Plays episodes with a job's environment.

    Attributes:
        decode: turns the tokens of turns into texts, without special tokens.
        decode_all: the same with special tokens, for people.
        together: see `Turns`.
    """

    spec: LoRARLJobSpec
    environment: Environment
    bridge: Bridge
    decode: Callable[[Sequence[Any]], list[str]]
    decode_all: Callable[[Sequence[Any]], list[str]]
    together: bool

    @property
    def field(self) -> str:
        """The environment's path in the manifest, for errors."""
        return FIELD

    async def play(
        self,
        workers: Workers,
        rows: Sequence[EncodedRow],
        requests: Sequence[GenerationRequest],
        starts: Sequence[int],
        adapter_version: int,
    ) -> ScoredRollouts:
        """Play an episode of each row, whose turns this adapter version generates, and no other.

        Args:
            workers: they generate the turns.
            rows: what the environment gets.
            requests: how the turns of each are drawn. An episode has one stream of random numbers.
            starts: the seeds of the environment's own random numbers.
            adapter_version: the newest.

        Raises:
            InputError: not one got a reward.
            StaleAdapterError: another adapter version generated a turn.
            LorarlError: a worker failed.
        """
        began = time.perf_counter()
        played = [_Played(row) for row in rows]
        waiting = iter(range(len(rows)))
        players = min(len(rows), self._most)
        turns = Turns(workers, players, together=self.together)

        async def play_next() -> None:
            for number in waiting:  # shared: each player takes the next one
                await self._play(number, played[number], requests[number], starts[number], turns, adapter_version)

        await turns.of_all([play_next() for _ in range(players)])
        outcomes = [one.outcome for one in played if one.outcome is not None]
        scores = collect(outcomes, FIELD)
        completions = [one.completion(adapter_version) for one in played]
        generated = turns.seconds
        return ScoredRollouts(
            rows=[one.row for one in played],
            completions=completions,
            texts=self.decode_all([completion.tokens for completion in completions]),
            rewards=scores.rewards,
            failures=scores.failures,
            outcomes=outcomes,
            seconds=generated | {"environment": max(0.0, time.perf_counter() - began - sum(generated.values()))},
            occupancy=turns.occupancy,
            courses=[one.course for one in played],
        )

    @property
    def _most(self) -> int:
        assert self.spec.environment is not None, "it makes this job's episodes"
        return self.spec.environment.concurrency

    async def _play(
        self, number: int, played: _Played, request: GenerationRequest, start: int, turns: Turns, version: int
    ) -> None:
        """Play one episode to its end, or until its environment fails."""
        try:
            async with self.environment.episode(start) as episode:
                try:
                    await self._converse(number, played, episode, request, turns, version)
                finally:
                    played.seconds = episode.seconds
            played.outcome = _outcome(played)
        except EpisodeFailedError as failed:
            played.outcome = Outcome.failed(failed.cause, failed.message)
        except InputError as error:  # a text that the chat template or the tokenizer does not take
            played.outcome = Outcome.failed("wrong_type", str(error))
        if played.outcome.cause:
            played.ended = played.outcome.cause
        played.take_back()

    async def _converse(
        self,
        number: int,
        played: _Played,
        episode: Episode,
        request: GenerationRequest,
        turns: Turns,
        version: int,
    ) -> None:
        opened = self.bridge.opened(played.row, await episode.reset(played.row.row.raw))
        most = self.spec.rollout.max_prompt_tokens
        if len(opened.prompt_ids) > most:
            found = (
                f"reset returned a text of {len(opened.prompt_ids):,} tokens; spec.rollout.maxPromptTokens is {most}"
            )
            raise EpisodeFailedError("too_long", found)
        played.row = opened
        for room in self._rooms(played):
            made = await turns.of(
                number,
                replace(
                    request,
                    tokens=[*opened.prompt_ids, *played.response],
                    begun=len(played.response),
                    max_tokens=room,
                ),
            )
            require_version([made], version)
            played.turns.append(made)
            played.append(made.tokens.tolist(), made=True)
            answer = await episode.step(self.decode([made.tokens])[0])
            played.rewards += [] if answer.reward is None else [answer.reward]
            played.components |= answer.components
            if answer.done:
                played.ended = "done"
                return
            if not made.finished:
                break
            ended = made.tokens[-1] in self.bridge.stop_ids
            played.append(self.bridge.tokens(opened.row, answer.text, ended=ended), made=False)

    def _rooms(self, played: _Played) -> Iterator[int]:
        """Yield how many tokens each turn may have, until no more turns may come."""
        environment, most = self.spec.environment, self.spec.rollout.max_response_tokens
        assert environment is not None
        for _ in range(environment.max_turns):
            played.ended = "tokens"
            if (left := most - len(played.response)) <= 0:
                return
            yield min(left, environment.max_turn_tokens or left)
        played.ended = "turns"


def _outcome(played: _Played) -> Outcome:
    """Return an episode's reward: the sum of those of its turns, 0 if a limit ended it before there was one."""
    if not played.rewards and played.ended == "done":
        return Outcome.failed("wrong_type", "step ended the episode, and no turn of it had a reward")
    return Outcome(float(sum(played.rewards)), components=played.components)


def episode_metrics(courses: Sequence[Course]) -> dict[str, float]:
    """Return a step's metrics of its episodes; none without an environment.

    episode/turns: turns of the model, mean. episode/environment_seconds: that an environment took, mean over the
    episodes. episode/ended_WHY: share of the episodes, 0 to 1, that the environment ended (done), a limit of turns
    (turns) or tokens (tokens), or that failed for a cause (timeout, exception, crash, wrong_type, ...).
    """
    if not courses:
        return {}
    ends = [course.ended for course in courses]
    kinds = dict.fromkeys(("done", "turns", "tokens", *sorted(ends)))
    return {
        "episode/turns": float(np.mean([course.turns for course in courses])),
        "episode/environment_seconds": float(np.mean([course.seconds for course in courses])),
        **{f"episode/ended_{kind}": ends.count(kind) / len(ends) for kind in kinds},
    }
