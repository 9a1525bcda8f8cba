"""Episodes with tools: trainer and engine see the same tokens, and what the model calls is answered in its place."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lorarl_api.v1alpha1 import EnvironmentSpec
from lorarl_trainer.data.bridge import Bridge
from lorarl_trainer.data.encoder import PromptEncoder
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.data.rows import Row
from lorarl_trainer.data.tokenizer import load_tokenizer
from lorarl_trainer.data.tool_calls import CallParser, ToolCall
from lorarl_trainer.rewards.environment.environment import Environment
from lorarl_trainer.rewards.process import CodeFolders
from lorarl_trainer.rewards.scores import Outcome, ToScore
from lorarl_trainer.rollout.collect import ScoredRollouts
from lorarl_trainer.rollout.episodes import Episodes, Tools
from lorarl_trainer.samples.requests import GenerationRequest
from lorarl_trainer.samples.sample import Sample
from support.in_process import STOP, Colocated, OneWorker, update_request, worst
from trainer.letters_with_tools import write_letters_with_tools

CODE = """
def count(text: str) -> int:
    \"\"\"Count letters.

    Args:
        text: What to count in.
    \"\"\"
    if len(text) > 6: raise ValueError("too long")
    return len(text)
"""
ENDS = tuple(range(112, 128))


class Letters(CallParser):
    """A model of random weights writes no call, so its turns are read as calls by their number of letters."""

    def calls(self, turn: str) -> list[ToolCall]:
        if len(turn) % 3 == 0:
            return []
        good = ToolCall("count", {"text": turn})
        return [good, ToolCall(fault="there is no tool 'x'")] if len(turn) % 3 == 2 else [good]


class Answers:
    """Scores an answer by its length, and keeps what it got."""

    field = "spec.reward"

    def __init__(self) -> None:
        self.seen: list[ToScore] = []

    def warm_up(self) -> None:
        """Needs nothing."""

    async def ready(self) -> None:
        """Is ready."""

    def close(self) -> None:
        """Has nothing open."""

    async def score(self, samples: Sequence[ToScore]) -> list[Outcome]:
        self.seen += samples
        return [Outcome(float(len(sample.completion))) for sample in samples]


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Colocated]:
    folder = write_letters_with_tools(tmp_path_factory.mktemp("model"))
    settings = {"maxTurns": 4, "maxTurnTokens": 12, "tools": ["my_tools:count"]}
    lengths = {"rollout__maxPromptTokens": 512, "rollout__maxResponseTokens": 400, "data__chatTemplate": True}
    started = Colocated(folder, tmp_path_factory.mktemp("job"), environment=settings, **lengths)
    started.randomise()
    started.sync()
    yield started
    started.close()


def play(worker: Colocated, folder: Path, **changes: Any) -> tuple[ScoredRollouts, Answers]:
    (folder / "my_tools.py").write_text(CODE)
    tokenizer, scorer = load_tokenizer(worker.model), Answers()
    assert worker.spec.environment is not None
    settings: EnvironmentSpec = worker.spec.environment.model_copy(update=changes)
    environment = Environment(settings, CodeFolders((str(folder),)))
    encoder = PromptEncoder(tokenizer, chat_template=True, stop_ids=STOP)

    async def run() -> ScoredRollouts:
        await environment.ready()
        rows = [Row(text, None, {}, n + 1, tools=environment.tools) for n, text in enumerate(["GO", "SAY IT", "?"] * 4)]
        encoded = [EncodedRow(row, ids, []) for row, ids in zip(rows, encoder.encode_prompts(rows), strict=True)]
        episodes = Episodes(
            worker.spec.model_copy(update={"environment": settings}),
            environment,
            Bridge(encoder),
            lambda tokens: tokenizer.batch_decode(tokens, skip_special_tokens=True),
            tokenizer.batch_decode,
            together=True,
            tools=Tools(Letters(tokenizer, environment.tools), scorer),
        )
        requests = [
            GenerationRequest(row.prompt_ids, "a test", 100 + n, stop_token_ids=ENDS, adapter=worker.version)
            for n, row in enumerate(encoded)
        ]
        return await episodes.play(OneWorker(worker.worker), encoded, requests, [0] * 12, worker.version)

    try:
        return asyncio.run(run()), scorer
    finally:
        environment.close()


def test_the_trainer_sees_what_the_engine_sampled_around_the_results(worker: Colocated, tmp_path: Path) -> None:
    made, scorer = play(worker, tmp_path)
    tokenizer = load_tokenizer(worker.model)
    trained = [Sample.of(row.prompt_ids, one) for row, one in zip(made.rows, made.completions, strict=True)]
    assert worst(worker.trainer_logprobs(trained), [one.rollout_logprobs for one in trained]) < 2e-5
    used = [course.tools for course in made.courses]
    assert sum(use.calls for use in used if use) > sum(use.malformed for use in used if use) > 0
    assert sum(use.failed for use in used if use) > 0
    for row, sample, course in zip(made.rows, trained, made.courses, strict=True):
        assert '"name": "count"' in tokenizer.decode(row.prompt_ids) and course.tools is not None
        assert sample.mask is not None and sample.mask[0] and sample.mask[-1], "the model has the last word"
        told = tokenizer.decode(sample.tokens[sample.prompt_length :][~sample.mask])
        assert told.count("<tool_response>") == course.tools.calls
        assert told.count("<tool_response>\nError: ") == course.tools.malformed + course.tools.failed
        assert told.count("<|im_start|>assistant\n") == course.turns - 1
    result = worker.worker.update(
        update_request(trained, total_tokens=sum(sample.trained_length for sample in trained), learning_rate=0.0)
    )
    assert result.disagreement is None
    # The reward sees the last turn alone, as the answer to the row.
    assert sorted(made.rewards) == sorted(float(len(sample.completion)) for sample in scorer.seen)
    assert {sample.prompt for sample in scorer.seen} == {"GO", "SAY IT", "?"}


def test_a_rerun_makes_the_same_tokens_and_a_last_turn_calls_nothing(worker: Colocated, tmp_path: Path) -> None:
    (made, _), (again, _) = play(worker, tmp_path), play(worker, tmp_path)
    assert [one.tokens.tobytes() for one in made.completions] == [one.tokens.tobytes() for one in again.completions]
    assert [replace(one, seconds=0.0) for one in made.courses] == [replace(one, seconds=0.0) for one in again.courses]
    short, _ = play(worker, tmp_path, max_turns=1)
    assert all(course.turns == 1 and course.tools is not None and not course.tools.calls for course in short.courses)
