"""Episodes of many turns, exact to the token: the model's turns as they were generated, and between them the bridges.

An episode grows at its end alone. What the model made is never encoded again, so trainer and engine see the same
tokens. Only those are trained. While one episode waits for its environment, the engines generate turns of others.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from lorarl_api.v1alpha1 import EnvironmentSpec, LoRARLJobSpec
from lorarl_trainer.data.bridge import Bridge
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.data.tool_calls import CallParser, ToolCall
from lorarl_trainer.errors import InputError
from lorarl_trainer.protocols.workers import Generators
from lorarl_trainer.rewards.environment.playing import FIELD, EpisodeFailedError, OpenEpisode, Plays, Result
from lorarl_trainer.rewards.environment.worker import MALFORMED, error_text
from lorarl_trainer.rewards.scores import Outcome, Scorer, ToScore, collect
from lorarl_trainer.rollout.agents import Agents
from lorarl_trainer.rollout.collect import Course, Further, ScoredRollouts, require_version
from lorarl_trainer.rollout.played import Played, PlayedSequence
from lorarl_trainer.rollout.turns import Turns
from lorarl_trainer.samples.requests import GenerationRequest
from lorarl_trainer.samples.sample import Completion
from lorarl_trainer.schedule import seed_of


@dataclass(frozen=True)
class Tools:
    """What an episode with tools needs beside them.

    Attributes:
        parser: finds calls in turns.
        scorer: of the last turn, the model's answer.
    """

    parser: CallParser
    scorer: Scorer


@dataclass(frozen=True)
class _Play:
    """What the episodes of one step or evaluation share.

    Attributes:
        version: the adapter version with which their turns are asked for.
        agents: let an agent play; None without one.
    """

    turns: Turns
    version: int
    agents: Agents | None


@dataclass(frozen=True)
class Episodes:
    """Plays episodes with a job's environment: those of a step or an evaluation, and of several side by side.

    Attributes:
        tools: None with a class, which opens, answers and rewards episodes, and with an agent.
        agents: makes what lets an agent play; None without one.
        decode: turns the tokens of turns into texts, without special tokens.
        decode_all: the same with special tokens, for people.
        together: see `Turns`. Only one step or evaluation is played at a time then.
    """

    spec: LoRARLJobSpec
    environment: Plays
    bridge: Bridge
    decode: Callable[[Sequence[Any]], list[str]]
    decode_all: Callable[[Sequence[Any]], list[str]]
    together: bool
    tools: Tools | None = None
    agents: Callable[[], Agents] | None = None

    @property
    def field(self) -> str:
        """The environment's path in the manifest, for errors."""
        return FIELD

    async def play(
        self,
        workers: Generators,
        rows: Sequence[EncodedRow],
        requests: Sequence[GenerationRequest],
        starts: Sequence[int],
        adapter_version: int,
    ) -> ScoredRollouts:
        """Play an episode of each row, whose turns this adapter version generates.

        No other generates any, unless the requests let newer ones. Then each turn is by the newest, which may change
        within an episode.

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
        played = [Played([PlayedSequence(row)], [] if self.tools else None) for row in rows]
        waiting = iter(range(len(rows)))
        players = min(len(rows), self._limits.concurrency)
        turns, agents = Turns(workers, players, together=self.together), self.agents() if self.agents else None
        play = _Play(turns, adapter_version, agents)

        async def play_next() -> None:
            async with self._places:
                for number in waiting:  # shared: each player takes the next one
                    await self._play(number, played[number], requests[number], starts[number], play)

        async with agents.serving() if agents else contextlib.nullcontext():
            await turns.of_all([play_next() for _ in range(players)])
        outcomes = [one.outcome for one in played if one.outcome is not None]
        scores = collect(outcomes, FIELD)
        completions = [one.first.completion(adapter_version) for one in played]
        generated = turns.seconds
        return ScoredRollouts(
            rows=[one.first.row for one in played],
            completions=completions,
            texts=self.decode_all([completion.tokens for completion in completions]),
            rewards=scores.rewards,
            failures=scores.failures,
            outcomes=outcomes,
            seconds=generated | {"environment": max(0.0, time.perf_counter() - began - sum(generated.values()))},
            occupancy=turns.occupancy,
            courses=[one.course for one in played],
            further=self._further([one.further(adapter_version) for one in played]),
        )

    def _further(self, made: Sequence[Sequence[Further]]) -> list[Sequence[Further]]:
        """Return the further sequences of episodes with their texts; nothing if there are none."""
        if not any(made):
            return []
        texts = iter(self.decode_all([one.completion.tokens for each in made for one in each]))
        return [[replace(one, text=next(texts)) for one in each] for each in made]

    @cached_property
    def _places(self) -> asyncio.Semaphore:
        """The episodes that are played at a time. The first to wait is next, so an earlier step is."""
        return asyncio.Semaphore(self._limits.concurrency)

    @property
    def _limits(self) -> EnvironmentSpec:
        assert self.spec.environment is not None, "it makes this job's episodes"
        return self.spec.environment

    async def _play(self, number: int, played: Played, request: GenerationRequest, start: int, play: _Play) -> None:
        """Play one episode to its end, or until its environment fails."""
        try:
            async with self.environment.episode(start) as episode:
                try:
                    played.outcome = await self._converse(number, played, episode, request, play)
                finally:
                    played.seconds = episode.seconds
            played.outcome = played.outcome or await self._scored(played)
        except EpisodeFailedError as failed:
            played.outcome = Outcome.failed(failed.cause, failed.message)
        except InputError as error:  # a text that the chat template or the tokenizer does not take
            played.outcome = Outcome.failed("wrong_type", str(error))
        if played.outcome.cause:
            played.ended = played.outcome.cause
            played.outcome = replace(played.outcome, reward=played.outcome.reward or FIELD)
        if play.agents is None or played.outcome.cause:
            for one in played.sequences:
                one.cut = played.ended == "tokens"
        played.finish()

    async def _converse(
        self,
        number: int,
        played: Played,
        episode: OpenEpisode,
        request: GenerationRequest,
        play: _Play,
    ) -> Outcome | None:
        """Let the model and the environment speak; return the reward of an agent, which has its own."""

        async def ask(sequence: PlayedSequence, room: int, stops: Sequence[int] = ()) -> Completion:
            own, prompt_ids = request.stop_token_ids or self.bridge.stop_ids, sequence.row.prompt_ids
            wanted = replace(
                request,
                tokens=[*prompt_ids, *sequence.response],
                # What a further sequence's prompt has beyond the limit takes room of its turns.
                begun=max(0, len(prompt_ids) - self.spec.rollout.max_prompt_tokens) + len(sequence.response),
                max_tokens=room,
                stop_token_ids=tuple(sorted({*own, *stops})) if stops else request.stop_token_ids,
                seed=_seed(request.seed, sequence.number),
            )
            made = await play.turns.of(number, wanted, sequence.number)
            require_version([made], play.version, newer=request.newer)
            return sequence.add(made)

        if play.agents is not None:
            return await play.agents.play(played, episode, ask)
        if self.tools is None:
            played.first.row = await self._opened(played.first.row, episode)
        for room in self._rooms(played):
            await ask(played.first, room)
            answers = self._called(played, episode, self.tools) if self.tools else self._stepped(played, episode)
            if (answer := await answers) is None:
                break
            played.first.append(answer, made=False)
        return None

    async def _opened(self, row: EncodedRow, episode: OpenEpisode) -> EncodedRow:
        """Return a row with what the class opens its episode with as its prompt."""
        opened = self.bridge.opened(row, await episode.reset(row.row.raw))
        most, length = self.spec.rollout.max_prompt_tokens, len(opened.prompt_ids)
        if length > most:
            found = f"reset returned a text of {length:,} tokens; spec.rollout.maxPromptTokens is {most}"
            raise EpisodeFailedError("too_long", found)
        return opened

    async def _stepped(self, played: Played, episode: OpenEpisode) -> list[int] | None:
        """Return the tokens with which the class answers the last turn; None if no turn follows it."""
        made = played.first.turns[-1]
        answer = await episode.step(self.decode([made.tokens])[0])
        played.rewards += [] if answer.reward is None else [answer.reward]
        played.components |= answer.components
        if answer.done:
            played.ended = "done"
        if answer.done or not made.finished:
            return None
        return self.bridge.tokens(played.first.row.row, answer.text, ended=self._ended(made))

    async def _called(self, played: Played, episode: OpenEpisode, tools: Tools) -> list[int] | None:
        """Return the tokens with the results of the calls of the last turn; None if no turn follows it."""
        made, ended = (last := played.first.turns[-1]), self._ended(last)
        calls = tools.parser.calls(self.decode_all([made.tokens[: len(made.tokens) - ended]])[0])
        if made.finished and not calls:
            played.ended = "done"
            return None
        if not made.finished or len(played.first.turns) == self._limits.max_turns:  # no turn would see the results
            return None
        results = [await self._result(call, episode) for call in calls]
        assert played.results is not None, "there are tools"
        played.results += [result.fault for result in results]
        answers = [(call.name, result.text) for call, result in zip(calls, results, strict=True)]
        return self.bridge.results(played.first.row.row, answers, ended=ended)

    async def _result(self, call: ToolCall, episode: OpenEpisode) -> Result:
        if call.fault:
            return Result(**error_text(call.fault, MALFORMED))
        return await episode.call(call.name, call.arguments or {})

    def _ended(self, made: Completion) -> bool:
        """Whether a turn ended with a stop token, and not with a text of `rollout.stop`."""
        return bool(made.finished and made.tokens[-1] in self.bridge.stop_ids)

    async def _scored(self, played: Played) -> Outcome:
        """Return what the class has rewarded; with tools, score the last turn as the answer to the row."""
        if (tools := self.tools) is None:
            return _outcome(played)
        row, last = played.first.row.row, played.first.turns[-1]
        answer = ToScore(
            row.prompt,
            self.decode([last.tokens])[0],
            row.answer,
            row.raw,
            played.ended == "tokens",
            sum(played.first.mask),
            played.first.row.prompt_ids,
            last.tokens,
        )
        (outcome,) = await tools.scorer.score([answer])
        return replace(outcome, reward=outcome.reward or tools.scorer.field) if outcome.cause else outcome

    def _rooms(self, played: Played) -> Iterator[int]:
        """Yield how many tokens each turn may have, until no more turns may come."""
        environment, most = self._limits, self.spec.rollout.max_response_tokens
        for _ in range(environment.max_turns):
            played.ended = "tokens"
            if (left := most - len(played.first.response)) <= 0:
                return
            yield min(left, environment.max_turn_tokens or left)
        played.ended = "turns"


def _seed(seed: int | None, number: int) -> int | None:
    """Return the seed of an episode's sequence: the first has the episode's."""
    return seed if seed is None or not number else seed_of(seed, "sequence", number)


def _outcome(played: Played) -> Outcome:
    """Return an episode's reward: the sum of those of its turns, 0 if a limit ended it before there was one."""
    if not played.rewards and played.ended == "done":
        return Outcome.failed("wrong_type", "step ended the episode, and no turn of it had a reward")
    return Outcome(float(sum(played.rewards)), components=played.components)


def episode_metrics(courses: Sequence[Course]) -> dict[str, float]:
    """Return a step's metrics of its episodes; none without an environment.

    episode/turns, episode/sequences: turns of the model, and sequences of tokens that have them, mean.
    episode/environment_seconds: that an environment took, mean over the episodes. episode/ended_WHY: share of the
    episodes, 0 to 1, that the environment ended (done), a limit of turns (turns) or tokens (tokens), or that failed for
    a cause (timeout, exception, crash, wrong_type, ...).
    tools/calls, tools/malformed, tools/failed: see `ToolUse`, mean over the episodes; only with tools.
    """
    if not courses:
        return {}
    uses = [course.tools for course in courses if course.tools is not None]
    ends = [course.ended for course in courses]
    kinds = dict.fromkeys(("done", "turns", "tokens", *sorted(ends)))
    return {
        "episode/turns": float(np.mean([course.turns for course in courses])),
        "episode/sequences": float(np.mean([course.sequences for course in courses])),
        "episode/environment_seconds": float(np.mean([course.seconds for course in courses])),
        **{f"episode/ended_{kind}": ends.count(kind) / len(ends) for kind in kinds},
        **{
            f"tools/{kind}": float(np.mean([getattr(use, kind) for use in uses]))
            for kind in ("calls", "malformed", "failed")
            if uses
        },
    }
