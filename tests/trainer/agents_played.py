"""Agents beside a real engine, and what their episodes become for the trainer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lorarl_trainer.data.bridge import Bridge
from lorarl_trainer.data.encoder import PromptEncoder
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.data.rows import Row
from lorarl_trainer.data.tokenizer import load_tokenizer
from lorarl_trainer.data.tool_calls import CallParser, ToolCall
from lorarl_trainer.rewards.environment.environment import Environment
from lorarl_trainer.rewards.process import CodeFolders
from lorarl_trainer.rollout.agents import Agents
from lorarl_trainer.rollout.collect import ScoredRollouts
from lorarl_trainer.rollout.endpoint.conversation import Speech
from lorarl_trainer.rollout.episodes import Episodes
from lorarl_trainer.rollout.rounds import samples_of
from lorarl_trainer.samples.requests import GenerationRequest
from lorarl_trainer.samples.sample import Sample
from support.in_process import STOP, Colocated, OneWorker, update_request, worst
from trainer.letters_with_tools import write_letters_with_tools

WORDS = ["GO", "SAY IT", "A LONGER OPENING", "?"]
ENDS = tuple(range(112, 128))


class Letters(CallParser):
    """A model of random weights writes no call, so its turns are read as calls by their number of letters."""

    def calls(self, turn: str) -> list[ToolCall]:
        return [ToolCall("count", {"text": turn})] * (len(turn) % 3)

    def require_read(self, written: str, call: ToolCall) -> None:
        """The template writes calls otherwise."""


@contextmanager
def started_worker(model: Path, job: Path) -> Iterator[Colocated]:
    """A worker with an adapter of random weights, of a job with an agent."""
    folder = write_letters_with_tools(model)
    settings = {"maxTurns": 4, "maxTurnTokens": 12, "agent": "my_agent:play", "timeoutSeconds": 60}
    lengths = {"rollout__maxPromptTokens": 300, "rollout__maxResponseTokens": 200, "data__chatTemplate": True}
    started = Colocated(folder, job, reward="null", environment=settings, **lengths)
    started.randomise()
    started.sync()
    try:
        yield started
    finally:
        started.close()


def rows(how: str, count: int = 6, **more: Any) -> list[EncodedRow]:
    raw = [{"word": WORDS[n % len(WORDS)], "how": how, "turns": 3, "slow": 0.0} | more for n in range(count)]
    return [EncodedRow(Row(str(one["word"]), None, one, n + 1), [5, 6, 7], []) for n, one in enumerate(raw)]


def play(worker: Colocated, folder: Path, agent: str, played: Sequence[EncodedRow]) -> ScoredRollouts:
    (folder / "my_agent.py").write_text(agent)
    tokenizer = load_tokenizer(worker.model)
    assert worker.spec.environment is not None
    environment = Environment(worker.spec.environment, CodeFolders((str(folder),)))
    size = json.loads((worker.model / "config.json").read_text())["vocab_size"]  # more than the tokenizer knows
    bridge = Bridge(PromptEncoder(tokenizer, chat_template=True, stop_ids=STOP, vocabulary_size=size))
    decoders = partial(tokenizer.batch_decode, skip_special_tokens=True), tokenizer.batch_decode
    agents = Agents(worker.spec, Speech(bridge, *decoders, partial(Letters, tokenizer)))
    episodes = Episodes(worker.spec, environment, bridge, *decoders, together=True, agents=lambda: agents)
    requests = [
        GenerationRequest([1], "a test", 100 + n, stop_token_ids=ENDS, adapter=worker.version)
        for n in range(len(played))
    ]
    try:
        starts = [0] * len(played)
        return asyncio.run(episodes.play(OneWorker(worker.worker), played, requests, starts, worker.version))
    finally:
        environment.close()


def require_exact(worker: Colocated, made: ScoredRollouts) -> list[Sample]:
    trained = samples_of(made)
    assert not np.isnan(made.rewards).any(), made.failures
    assert worst(worker.trainer_logprobs(trained), [one.rollout_logprobs for one in trained]) < 2e-5
    total = sum(sample.trained_length for sample in trained)
    result = worker.worker.update(update_request(trained, total_tokens=total, learning_rate=0.0))
    assert result.disagreement is None
    return trained
