"""Agents that shorten their history, have parts side by side, or choose the best of two: each sequence is exact."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lorarl_trainer.data.tokenizer import load_tokenizer
from lorarl_trainer.rollout.episodes import episode_metrics
from lorarl_trainer.rollout.rounds import samples_of
from support.in_process import Colocated
from trainer.agents_played import play, require_exact, rows, started_worker

AGENT = """
import asyncio
import openai

def play(row, llm):
    return globals()[row["how"]](row, llm)

def said(llm, messages, **headers):
    client = openai.OpenAI(base_url=llm.base_url, api_key=llm.api_key, default_headers=headers)
    return client.chat.completions.create(model=llm.model, messages=messages).choices[0].message

def trims(row, llm):
    messages = [{"role": "user", "content": row["word"]}]
    for turn in range(4):
        messages += [said(llm, messages[-3:]), {"role": "user", "content": f"TURN {turn}"}]
    return len(messages[-2].content)

async def parts(row, llm):
    async def part(name):
        client = openai.AsyncOpenAI(
            base_url=llm.base_url, api_key=llm.api_key, default_headers={"X-Session-ID": name}
        )
        messages = [{"role": "user", "content": row["word"]}]
        for turn in range(2):
            reply = await client.chat.completions.create(model=llm.model, messages=messages)
            messages += [reply.choices[0].message, {"role": "user", "content": f"TURN {turn}"}]
        return len(messages[-2].content)
    return sum(await asyncio.gather(part("left"), part("right")))

def best(row, llm):
    messages = [{"role": "user", "content": row["word"]}]
    messages += [said(llm, messages), {"role": "user", "content": "TWO OF THESE"}]
    one, other = said(llm, messages), said(llm, messages)
    longer = max(one, other, key=lambda message: len(message.content))
    said(llm, [*messages, longer, {"role": "user", "content": "AND"}])
    return {"reward": len(longer.content), "differ": float(one.content != other.content)}
"""


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Colocated]:
    with started_worker(tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("job")) as started:
        yield started


def test_the_trainer_sees_what_each_sequence_of_an_episode_sampled(worker: Colocated, tmp_path: Path) -> None:
    asked = [*rows("trims", 3), *rows("parts", 3), *rows("best", 3)]
    made = play(worker, tmp_path, AGENT, asked)
    trained = require_exact(worker, made)
    counts = made.counts
    assert counts[3:] == [2] * 6 and all(count >= 2 for count in counts[:3])
    assert len(trained) == sum(counts) and episode_metrics(made.courses)["episode/sequences"] == np.mean(counts)
    # Every turn is trained once: no engine made more tokens, or fewer.
    assert [course.turns for course in made.courses] == [4] * 9
    assert sum(sample.trained_length for sample in trained) == sum(
        len(sample.rollout_logprobs) for sample in trained if sample.rollout_logprobs is not None
    )
    tokenizer = load_tokenizer(worker.model)
    for first, further in zip(made.completions[6:], made.further[6:], strict=True):
        [branch] = further
        assert first.mask is not None and branch.completion.mask is not None
        own = int(np.argmax(branch.completion.mask))  # all before it is the first sequence's, and masked
        assert branch.completion.tokens[:own].tolist() == first.tokens[:own].tolist()
        assert first.mask[:own].any() and branch.completion.mask.any()
        assert "TWO OF THESE" in tokenizer.decode(first.tokens[:own])
    assert sum(outcome.components["differ"] for outcome in made.outcomes[6:]) > 0, "each has its own random numbers"
    for row, one in [(row, one) for row, each in zip(made.rows[:3], made.further[:3], strict=True) for one in each]:
        assert len(one.row.prompt_ids) > len(row.prompt_ids) and one.completion.mask is not None
        assert one.completion.mask[0], "old turns are its prompt, which is not trained"


def test_agents_that_wait_for_each_answer_have_the_same_bytes_again(worker: Colocated, tmp_path: Path) -> None:
    asked = [*rows("trims", 2), *rows("best", 2)]
    made, again = (samples_of(play(worker, tmp_path, AGENT, asked)) for _ in range(2))
    for one, other in zip(made, again, strict=True):
        assert one.tokens.tobytes() == other.tokens.tobytes()
        assert one.rollout_logprobs is not None and other.rollout_logprobs is not None
        assert one.rollout_logprobs.tobytes() == other.rollout_logprobs.tobytes()
