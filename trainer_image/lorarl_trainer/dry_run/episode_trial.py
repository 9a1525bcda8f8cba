"""What a dry run shows of an environment: one episode, played without the model, as the model would see it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.data.bridge import Bridge
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.data.tool_calls import example_of
from lorarl_trainer.dry_run.reward_trial import PATIENCE_SECONDS, WRONG
from lorarl_trainer.errors import InputError
from lorarl_trainer.launch import inputs
from lorarl_trainer.launch.rollouts import bridge_of, speech_of
from lorarl_trainer.rewards.environment.playing import FIELD, Answer, EpisodeFailedError, Plays
from lorarl_trainer.rewards.environment.worker import TOO_LONG
from lorarl_trainer.rewards.scores import Outcome
from lorarl_trainer.rollout.agents import Agents
from lorarl_trainer.rollout.played import Played, PlayedSequence
from lorarl_trainer.samples.sample import Completion
from lorarl_trainer.schedule import seed_of


@dataclass(frozen=True)
class EpisodeTrial:
    """An episode in which a made-up text stood in for each turn of the model.

    Attributes:
        tokens: all of it, as the model would see it.
        answers: of the environment, one to each turn.
        further: the episode's other sequences, as the model would see them.
    """

    row: EncodedRow
    tokens: list[int]
    answers: list[Answer]
    further: Sequence[list[int]] = ()


def hasty_environment(spec: LoRARLJobSpec) -> LoRARLJobSpec:
    """Return the spec with an environment that is waited for no longer than a dry run waits.

    A taskset keeps its own time, since it may start servers of tools.
    """
    if spec.environment is None or spec.environment.verifiers:
        return spec
    limit = min(spec.environment.timeout_seconds, PATIENCE_SECONDS)
    return spec.model_copy(update={"environment": spec.environment.model_copy(update={"timeout_seconds": limit})})


async def try_episode(
    spec: LoRARLJobSpec, environment: Plays, row: EncodedRow, vocabulary: inputs.Vocabulary
) -> EpisodeTrial:
    """Play one episode of a row.

    Raises:
        InputError: the environment fails in it, or opens it with more than the model may get.
    """
    assert spec.environment is not None, "there is one"
    bridge = bridge_of(spec, vocabulary)
    if not spec.opens_episodes:
        return await _try_call(spec, bridge, environment, row, vocabulary)
    said = [*vocabulary.tokenizer.encode(WRONG, add_special_tokens=False), _stop(vocabulary)]
    if spec.environment.calls_model:
        return await _try_agent(spec, environment, row, vocabulary, said)
    try:
        async with environment.episode(seed_of(spec.trainer.seed, "episode", 1, 0)) as episode:
            opened = bridge.opened(row, await episode.reset(row.row.raw))
            tokens, answers = list(opened.prompt_ids), list[Answer]()
            while True:
                tokens += said
                answers.append(await episode.step(WRONG))
                if answers[-1].done or len(answers) == spec.environment.max_turns:
                    break
                tokens += bridge.tokens(opened.row, answers[-1].text, ended=True)
    except EpisodeFailedError as failed:
        raise _failing(spec, row, f"{failed.cause}: {failed.message}", "an answer to each text") from failed
    if len(opened.prompt_ids) > spec.rollout.max_prompt_tokens:
        raise InputError(
            "spec.rollout.maxPromptTokens",
            f"{spec.rollout.max_prompt_tokens}, but reset opens the episode of row {row.row.number} with "
            f"{len(opened.prompt_ids)} tokens",
            "room for what opens an episode",
            f"Set spec.rollout.maxPromptTokens to {len(opened.prompt_ids)} or more.",
        )
    return EpisodeTrial(opened, tokens, answers)


async def _try_agent(
    spec: LoRARLJobSpec, environment: Plays, row: EncodedRow, vocabulary: inputs.Vocabulary, said: list[int]
) -> EpisodeTrial:
    """Let an agent play an episode in which the model says the same in each turn."""
    agents, played = Agents(spec, speech_of(spec, vocabulary)), Played([PlayedSequence(row)])

    async def ask(sequence: PlayedSequence, room: int, _: Sequence[int]) -> Completion:
        tokens = np.array(said[:room], np.int64)
        return sequence.add(Completion(tokens, np.zeros(len(tokens), np.float32), len(said) <= room, 0))

    try:
        async with agents.serving(), environment.episode(seed_of(spec.trainer.seed, "episode", 1, 0)) as episode:
            outcome = await agents.play(played, episode, ask)
    except EpisodeFailedError as failed:
        outcome = Outcome.failed(failed.cause, failed.message)
    if outcome.failure:
        raise _failing(spec, row, outcome.failure, "an agent that returns a reward")
    played.finish()
    answers = [Answer("", False, None)] * (played.course.turns - 1)
    tokens, *further = ([*one.row.prompt_ids, *one.response] for one in played.sequences)
    return EpisodeTrial(played.first.row, tokens, [*answers, Answer("", True, outcome.value)], further)


def _failing(spec: LoRARLJobSpec, row: EncodedRow, failure: str, expected: str) -> InputError:
    """Return the error of an environment that fails in an episode."""
    got = f"{spec.reward_names}, which fails in an episode of row {row.row.number} in which the model says "
    hint = "Fix it: a model may say anything. A run leaves such episodes out, and stops if all are."
    if failure.startswith(TOO_LONG):
        hint = "Shorten what it says, or raise spec.rollout.maxPromptTokens if that is the limit."
    return InputError(FIELD, f"{got}{WRONG!r} ({failure})", expected, hint)


async def _try_call(
    spec: LoRARLJobSpec, bridge: Bridge, environment: Plays, row: EncodedRow, vocabulary: inputs.Vocabulary
) -> EpisodeTrial:
    """Play an episode in which the model calls the first tool with made-up arguments, and then answers."""
    call, stop = example_of(environment.tools[0]), vocabulary.tokenizer.decode([_stop(vocabulary)])
    arguments = dict(call.arguments or {})
    try:
        written = bridge.call(row.row, call.name, arguments)
    except InputError:  # this template only shows how to call
        written = f"[a call of {call.name} with {json.dumps(arguments)}]"
    try:
        async with environment.episode(seed_of(spec.trainer.seed, "episode", 1, 0)) as episode:
            result = await episode.call(call.name, arguments)
    except EpisodeFailedError as failed:
        got = f"{call.name}, which fails when called with {json.dumps(arguments)} ({failed.cause}: {failed.message})"
        hint = "Fix it: a model may call it with anything. A run leaves such episodes out, and stops if all are."
        raise InputError(f"{FIELD}.tools", got, "an answer to each call", hint) from failed
    encode = partial(vocabulary.tokenizer.encode, add_special_tokens=False)
    between = bridge.results(row.row, [(call.name, result.text)], ended=True)
    tokens = [*row.prompt_ids, *encode(written + stop), *between, *encode(WRONG + stop)]
    return EpisodeTrial(row, tokens, [Answer(result.text, False, None), Answer("", True, None)])


def _stop(vocabulary: inputs.Vocabulary) -> int:
    """Return the token that ends a turn."""
    own, stops = vocabulary.tokenizer.eos_token_id, vocabulary.stop_token_ids
    return int(own if own in stops else min(stops))


def episode_lines(spec: LoRARLJobSpec, trial: EpisodeTrial, vocabulary: inputs.Vocabulary) -> Iterator[str]:
    """Yield the episode as the model sees it, its reward, and whether the limits have room for it."""
    answers = trial.answers
    rewards = [answer.reward for answer in answers if answer.reward is not None]
    ended = "done" if answers[-1].done else f"ended by spec.environment.maxTurns ({len(answers)})"
    how = f"which says {WRONG!r} at each turn" if spec.opens_episodes else "with a made-up call and answer"
    yield f"episode  row {trial.row.row.number}, played without the model, {how}:"
    for line in vocabulary.tokenizer.decode(trial.tokens).splitlines():
        yield f"  | {line}"
    for number, tokens in enumerate(trial.further, 2):
        yield f"sequence {number} of the episode:"
        yield from (f"  | {line}" for line in vocabulary.tokenizer.decode(tokens).splitlines())
    if spec.opens_episodes:
        yield from _reward_lines(answers, rewards, ended)
    response = len(trial.tokens) - len(trial.row.prompt_ids)
    if response > (most := spec.rollout.max_response_tokens):
        yield (
            f"warning: all that follows the opening of this episode has {response} tokens, and "
            f"spec.rollout.maxResponseTokens is {most}. A run ends such an episode sooner. Raise it."
        )


def _reward_lines(answers: list[Answer], rewards: list[float], ended: str) -> Iterator[str]:
    total = f"{sum(rewards):g}" if rewards else "none"
    yield f"reward   {total}, in {len(answers)} turn{'s' * (len(answers) > 1)}; {ended}"
    if answers[-1].done and not rewards:
        yield "warning: the episode was done without a reward. A run leaves such episodes out: return reward from step."
