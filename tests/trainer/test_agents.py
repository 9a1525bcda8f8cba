"""Agents that reach the model by URL alone: what they sample is trained, exact to the token, and again the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lorarl_trainer.data.tokenizer import load_tokenizer
from lorarl_trainer.rollout.episodes import episode_metrics
from support.in_process import Colocated
from trainer.agents_played import play, require_exact, rows, started_worker

AGENT = """
import asyncio, json, random, time, urllib.request
import openai

TOOL = {"type": "function", "function": {"name": "count", "parameters": {
    "type": "object", "properties": {"text": {"type": "string"}}}}}

def play(row, llm):
    how = globals()[row["how"]]
    return how(row, llm)

def ask(llm, messages, **more):
    client = openai.OpenAI(base_url=llm.base_url, api_key=llm.api_key)
    return client.chat.completions.create(model=llm.model, messages=messages, **more)

def talk(row, llm):
    messages, client = [{"role": "user", "content": row["word"]}], openai.OpenAI()
    for turn in range(row["turns"]):
        reply = client.chat.completions.create(model=llm.model, messages=messages, max_tokens=row.get("most"))
        time.sleep(random.random() * row["slow"])
        messages += [reply.choices[0].message, {"role": "user", "content": f"TURN {turn}"}]
    return {"reward": len(messages[-2].content), "turns": turn + 1}

async def stream(row, llm):
    client = openai.AsyncOpenAI(base_url=llm.base_url, api_key=llm.api_key)
    text, messages = "", [{"role": "user", "content": row["word"]}]
    for _ in range(2):
        text = ""
        async for chunk in await client.chat.completions.create(
            model=llm.model, messages=messages, stream=True, stream_options={"include_usage": True}
        ):
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
        messages += [{"role": "assistant", "content": text.strip()}, {"role": "user", "content": "AND"}]
    return chunk.usage.completion_tokens

def call(row, llm):
    messages, calls = [{"role": "user", "content": row["word"]}], 0
    for turn in range(3):
        choice = ask(llm, messages, tools=[TOOL]).choices[0]
        messages.append(choice.message.model_dump())
        for one in choice.message.tool_calls or ():
            length = len(json.loads(one.function.arguments)["text"])
            messages.append({"role": "tool", "tool_call_id": one.id, "content": f"count {length}"})
            calls += turn < 2  # the last turn's are not answered
        if choice.finish_reason != "tool_calls":
            messages.append({"role": "user", "content": "MORE"})
    return {"reward": 1.0, "calls": calls}

def tokens(row, llm):
    ids, logprobs = [5, 6, 7], []
    for more in ([8, 9], []):
        body = {"model": llm.model, "token_ids": ids, "sampling_params": {
            "temperature": 1.0, "max_tokens": 6, "stop_token_ids": [2], "logprobs": 1, "skip_special_tokens": False}}
        headers = {"Authorization": f"Bearer {llm.api_key}", "X-Session-ID": "7"}
        url = llm.base_url.removesuffix("/v1") + "/inference/v1/generate"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        choice = json.load(urllib.request.urlopen(request))["choices"][0]
        content = choice["logprobs"]["content"]
        assert [one["token"] for one in content] == [f"token_id:{one}" for one in choice["token_ids"]]
        ids, logprobs = [*ids, *choice["token_ids"], *more], [*logprobs, *(one["logprob"] for one in content)]
    return {"reward": sum(logprobs), "last": ids[-1]}
"""


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Colocated]:
    with started_worker(tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("job")) as started:
        yield started


def test_the_trainer_sees_what_each_client_sampled_however_long_it_takes(worker: Colocated, tmp_path: Path) -> None:
    others = [*rows("stream", 1), *rows("call", 6), *rows("tokens", 2), *rows("talk", 1, turns=10, most=1)]
    made, again = (play(worker, tmp_path, AGENT, [*rows("talk", 3, slow=slow), *others]) for slow in (0.0, 0.05))
    for one, other in zip(made.completions, again.completions, strict=True):
        assert one.tokens.tobytes() == other.tokens.tobytes()
        assert one.logprobs.tobytes() == other.logprobs.tobytes()
    assert made.rewards.tolist() == again.rewards.tolist()
    trained = require_exact(worker, made)
    tokenizer = load_tokenizer(worker.model)
    told = []
    for sample in trained:
        assert sample.mask is not None and sample.mask[0] and sample.mask[-1], "the model has the last word"
        told.append(tokenizer.decode(sample.tokens[sample.prompt_length :][~sample.mask]))
    for one, course in zip(told[:3], made.courses, strict=False):
        assert course.turns == 3 and course.ended in ("done", "tokens"), "the last turn may be cut off"
        assert one.count("<|im_end|>\n<|im_start|>user\nTURN") == one.count("<|im_start|>assistant\n") == 2
    assert all("<|im_end|>\n<|im_start|>user\nAND" in one for one in told[3:4])
    calls = [outcome.components["calls"] for outcome in made.outcomes[4:10]]
    assert sum(calls) > 0 and [one.count("<tool_response>\ncount ") for one in told[4:10]] == calls
    assert all('"name": "count"' in tokenizer.decode(row.prompt_ids) for row in made.rows[4:10])
    for sample, reward in zip(trained[10:12], made.rewards[10:12], strict=True):
        assert sample.tokens[:3].tolist() == [5, 6, 7]
        assert sample.rollout_logprobs is not None and sample.mask is not None
        assert sum(map(float, sample.rollout_logprobs)) == pytest.approx(reward)
        assert sample.tokens[3:][~sample.mask].tolist() == [8, 9]
    # Cut off by its own max_tokens, a turn is continued. The agent raises the limit of turns, which ends the episode.
    assert (made.courses[12].turns, made.courses[12].ended, made.rewards[12]) == (4, "turns", 0.0)
    assert trained[12].trained_length == 4 < trained[12].response_length
    assert episode_metrics(made.courses)["episode/ended_turns"] == 1 / 13
