"""An agent plays an episode over HTTP: each fault has its cause, and costs its episode alone. A script is the model."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import ToolFormat
from lorarl_trainer.data.bridge import Bridge
from lorarl_trainer.data.encoder import PromptEncoder
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.data.rows import Row
from lorarl_trainer.data.tokenizer import load_tokenizer
from lorarl_trainer.data.tool_calls import CallParser
from lorarl_trainer.errors import InputError, LorarlError
from lorarl_trainer.rewards.environment.environment import Environment, EpisodeFailedError
from lorarl_trainer.rewards.process import CodeFolders
from lorarl_trainer.rewards.scores import Outcome
from lorarl_trainer.rollout.agents import Agents
from lorarl_trainer.rollout.endpoint.conversation import Speech
from lorarl_trainer.rollout.played import Played, PlayedSequence
from lorarl_trainer.samples.sample import Completion
from support.tiny_tokenizers import TOOLS_CHATML, write_tokenizer
from unit.contract.manifests import manifest

pytestmark = pytest.mark.slow

AGENT = """
import concurrent.futures, json, os, pathlib, socket, time, urllib.error, urllib.request
from urllib.parse import urlsplit

SAID = [{"role": "user", "content": "Go."}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {
    "type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}}}

def send(llm, path, body=None, key=None):
    headers = {"Authorization": "Bearer " + (key or llm.api_key)}
    request = urllib.request.Request(llm.base_url + path, json.dumps(body).encode() if body else None, headers)
    return json.load(urllib.request.urlopen(request))

def chat(llm, messages, **more):
    body = {"model": llm.model, "messages": messages} | more
    [choice] = send(llm, "/chat/completions", body)["choices"]
    return choice["message"]

def tell(row, what):
    (pathlib.Path(row["folder"]) / what).touch()

def next_to(messages, message):
    return [*messages, message, {"role": "user", "content": "And?"}]

def play(row, llm):
    globals()[row["how"]](row, llm)
    return row.get("returns", 0.5)

def plays(row, llm):
    first = chat(llm, SAID)
    assert first == {"role": "assistant", "content": "<think>I say 1"}, first
    [model] = send(llm, "/models")["data"]
    assert (model["id"], model["max_model_len"]) == ("lorarl", 512 + 256)
    assert os.environ["OPENAI_BASE_URL"] == llm.base_url and os.environ["OPENAI_API_KEY"] == llm.api_key
    body = {"model": llm.model, "messages": next_to(SAID, first), "logprobs": True, "return_token_ids": True}
    answer = send(llm, "/chat/completions", body)
    [choice] = answer["choices"]
    content = choice["logprobs"]["content"]
    assert "".join(one["token"] for one in content) == "<think>I say 2<|im_end|>"
    assert [one["logprob"] for one in content] == [-0.5] * len(choice["token_ids"])
    assert answer["usage"]["prompt_tokens"] == len(answer["prompt_token_ids"])

def trims(row, llm):
    first = chat(llm, SAID)
    chat(llm, next_to(SAID, {"role": "assistant", "content": "\\n" + first["content"] + " "}))

def raises(row, llm):
    chat(llm, SAID)
    raise ValueError("no")

def leaves(row, llm):
    raise SystemExit(3)

def hangs(row, llm):
    chat(llm, SAID)
    time.sleep(1e6)

def never(row, llm):
    pass

def swallows(row, llm):
    chat(llm, SAID)
    for body in row["bodies"]:
        try:
            send(llm, row.get("path", "/chat/completions"), {"model": llm.model, "messages": SAID} | body)
        except urllib.error.HTTPError as error:
            said = json.load(error)["error"]
            assert said["message"] and said["type"] == "invalid_request_error" and "code" in said

def sends(row, llm):
    headers = {"Authorization": ""} | row["headers"] | {"x-api-key": llm.api_key}
    request = urllib.request.Request(llm.base_url + row["path"], b"{}", headers)
    try:
        urllib.request.urlopen(request)
    except urllib.error.HTTPError:
        pass

def talks_long(row, llm):
    chat(llm, [{"role": "user", "content": "x" * row.get("length", 600)}])

def shrugs(row, llm):
    for _ in range(2):
        try:
            chat(llm, SAID)
        except urllib.error.HTTPError as error:
            assert error.code == 500

def forges(row, llm):
    try:
        send(llm, "/models", key="lorarl-other")
    except urllib.error.HTTPError as error:
        assert error.code == 401 and json.load(error)["error"]["code"] == "invalid_api_key"
        raise

def edits(row, llm):
    first = chat(llm, SAID)
    chat(llm, next_to(SAID, first | {"content": "I said another thing"}))

def hurries(row, llm):
    def ask():
        try:
            chat(llm, SAID)
        except urllib.error.HTTPError:
            tell(row, "refused")

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        [pool.submit(ask) for _ in range(2)]

def goes_on(row, llm):
    messages = SAID
    for _ in range(9):
        messages = next_to(messages, chat(llm, messages))

def floods(row, llm):
    first = chat(llm, SAID)
    chat(llm, [*SAID, first, {"role": "user", "content": "x" * 300}])

def hangs_up(row, llm):
    body = json.dumps({"model": llm.model, "messages": SAID}).encode()
    with socket.create_connection(("127.0.0.1", urlsplit(llm.base_url).port)) as wire:
        head = f"POST /v1/chat/completions HTTP/1.1\\r\\nHost: x\\r\\nAuthorization: Bearer {llm.api_key}\\r\\n"
        wire.sendall((head + f"Content-Length: {len(body)}\\r\\n\\r\\n").encode() + body)
        while not (pathlib.Path(row["folder"]) / "asked").exists():
            time.sleep(0.01)
    tell(row, "gone")
    if row.get("again"):
        assert chat(llm, SAID)["content"] == "<think>I say 1"

def calls(row, llm):
    message = chat(llm, SAID, tools=[TOOL])
    assert message["content"] is None
    [call] = message["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"word": "sun"}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "bright"}
    last = chat(llm, [*SAID, message, result], tools=[TOOL])
    assert last["content"] == "<tool_call>{]</tool_call>"

def other_tools(row, llm):
    first = chat(llm, SAID)
    chat(llm, next_to(SAID, first), tools=[TOOL])

def narrow(row):
    return 1

def yields(row, llm):
    yield 1
"""
CALLS = ['<tool_call>{"name": "look", "arguments": {"word": "sun"}}</tool_call>', "<tool_call>{]</tool_call>"]
FAULTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "raises": ({}, "exception", "play: ValueError: no (my_agent.py, line "),
    "leaves": ({}, "crash", "the process exited with code 3 in play"),
    "never": ({}, "no_turn", "the agent returned a reward, and never called the model at llm.base_url"),
    "swallows": ({"bodies": [{"model": "gpt-4o"}]}, "refused", "The model 'gpt-4o' does not exist; the model that is"),
    "swallows sampling": ({"bodies": [{"temperature": 0.1}]}, "refused", "temperature is 0.1, but the job draws"),
    "swallows a path": ({"path": "/embeddings", "bodies": [{}]}, "refused", "POST /v1/embeddings is not served here"),
    "swallows a role": ({"bodies": [{"messages": [{"role": "a"}]}]}, "refused", "messages[0] has the role 'a'"),
    "talks_long": ({}, "too_long", "spec.rollout.maxPromptTokens is 512"),
    "talks_long and long": ({"length": 9_000_000}, "too_long", "at most 1,000,000 are read"),
    "sends to another API": (
        {"headers": {}, "path": "/messages"},
        "refused",
        "POST /v1/messages is not served here",
    ),
    "sends what has no such encoding": (
        {"headers": {"Content-Type": "application/json; charset=none"}, "path": "/chat/completions"},
        "refused",
        "The body is no JSON: unknown encoding: none",
    ),
    "sends what is not compressed": (
        {"headers": {"Content-Encoding": "gzip"}, "path": "/chat/completions"},
        "refused",
        "The body is no JSON",
    ),
    "forges": ({}, "exception", "play: HTTPError: HTTP Error 401: Unauthorized"),
    "plays none": ({"returns": None}, "wrong_type", "play returned None"),
    "plays words": ({"returns": "much"}, "wrong_type", "play returned str 'much'"),
    "plays nan": ({"returns": float("nan")}, "non_finite", "play returned nan"),
    "plays no reward": ({"returns": {"score": 1}}, "wrong_type", "returned a mapping without 'reward'"),
}
BRANCHES: dict[str, tuple[dict[str, Any], str]] = {
    "swallows the same": ({"bodies": [{}]}, "Its messages end before a turn of the model. Send all messages and tools"),
    "edits": ({}, "Its messages are others from messages[1] on. Send all messages and tools as they were"),
    "hurries": ({}, "a further sequence, and the episode has 1, as many as spec.environment.maxSequences allows"),
    "other_tools": ({}, "Its tools are others. Send all messages and tools as they were, and new messages after them"),
}
PLAYED: dict[str, tuple[dict[str, Any], float, str, list[str]]] = {
    "plays": ({"returns": {"reward": 2, "found": 1}}, 2.0, "done", ["<think>I say 1", "<think>I say 2"]),
    "trims": ({}, 0.5, "done", ["<think>I say 1", "<think>I say 2"]),
    "goes_on": ({}, 0.0, "turns", ["<think>I say 1", "<think>I say 2", "<think>I say 3"]),
    "floods": ({}, 0.0, "tokens", ["<think>I say 1"]),
    "hangs_up": ({}, 0.5, "done", ["<think>I say 1"]),
    "hangs_up again": ({"again": True}, 0.5, "done", ["<think>I say 1"]),
    "calls": ({"says": CALLS}, 0.5, "done", CALLS),
}


class Game:
    """A job's environment with an agent, without a model."""

    def __init__(
        self,
        folder: Path,
        timeout: float = 60.0,
        name: str = "play",
        tool_format: ToolFormat | None = None,
        **more: int,
    ) -> None:
        (folder / "my_agent.py").write_text(AGENT)
        settings = {"agent": f"my_agent:{name}", "maxTurns": 3, "timeoutSeconds": timeout} | more
        lengths = {"spec.rollout.maxResponseTokens": 256, "spec.rollout.maxPromptTokens": 512}
        spec = load_job(json.dumps(manifest({"spec.reward": None, "spec.environment": settings} | lengths))).spec
        assert spec.environment is not None
        self.tokenizer = load_tokenizer(write_tokenizer(folder / "base", template=TOOLS_CHATML))
        self.environment = Environment(spec.environment, CodeFolders((str(folder),)))
        bridge = Bridge(PromptEncoder(self.tokenizer, chat_template=True, stop_ids=(3,)))
        decoders = partial(self.tokenizer.batch_decode, skip_special_tokens=True), self.tokenizer.batch_decode
        self.folder = folder
        self.agents = Agents(spec, Speech(bridge, *decoders, partial(CallParser, self.tokenizer, chosen=tool_format)))

    async def play(self, row: dict[str, Any]) -> tuple[Played, Outcome]:
        row = {**row, "folder": tempfile.mkdtemp(dir=self.folder)}
        played = Played([PlayedSequence(EncodedRow(Row("p", None, row, 1), [1], []))])

        async def ask(sequence: PlayedSequence, room: int, _: Sequence[int]) -> Completion:
            (Path(row["folder"]) / "asked").touch()
            while (what := {"hangs_up": "gone", "hurries": "refused"}.get(row["how"])) and not (
                Path(row["folder"]) / what
            ).exists():
                await asyncio.sleep(0.01)
            await asyncio.sleep(row.get("slow", 0.01))  # the server sees that a connection is closed
            if row["how"] == "shrugs":
                raise LorarlError("a worker ended")
            turn = played.course.turns
            said = row["says"][turn] if "says" in row else f"<think>I say {turn + 1}"
            ids = [*self.tokenizer.encode(said, add_special_tokens=False), 3][:room]
            return sequence.add(Completion(np.array(ids), np.full(len(ids), -0.5, np.float32), ids[-1] == 3, 0))

        try:
            async with self.environment.episode(0) as episode:
                outcome = await self.agents.play(played, episode, ask)
        except EpisodeFailedError as failed:
            outcome = Outcome.failed(failed.cause, failed.message)
        played.finish()
        return played, outcome

    def of_all(self, rows: Sequence[dict[str, Any]]) -> list[tuple[Played, Outcome]]:
        async def play() -> list[tuple[Played, Outcome]]:
            async with self.agents.serving():
                return await asyncio.gather(*map(self.play, rows))

        try:
            return asyncio.run(play())
        finally:
            self.environment.close()


def rows(cases: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"how": how.split()[0], **case[0]} for how, case in cases.items()]


def test_each_fault_has_its_cause_and_costs_its_episode_alone(tmp_path: Path) -> None:
    game = Game(tmp_path)
    found = game.of_all([*rows(FAULTS), *rows(PLAYED)])
    for (how, (_, cause, message)), (_, outcome) in zip(FAULTS.items(), found, strict=False):
        assert outcome.cause == cause, (how, outcome)
        assert message in outcome.message, (how, outcome)
    for (how, (_, reward, ended, said)), (played, outcome) in zip(PLAYED.items(), found[len(FAULTS) :], strict=True):
        assert (outcome.value, played.ended) == (reward, ended), (how, outcome)
        [one] = played.sequences
        made = [game.tokenizer.decode(turn.tokens[:-1]) for turn in one.turns]
        assert made == said, how
        assert one.mask[0] and one.mask[-1] and sum(one.mask) == sum(len(turn.tokens) for turn in one.turns)
    whole = game.tokenizer.decode(found[len(FAULTS)][0].first.response)
    assert whole == (
        "<think>I say 1<|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n<think>I say 2<|im_end|>"
    )
    assert found[len(FAULTS)][1].components == {"found": 1.0}
    called = game.tokenizer.decode(found[-1][0].first.response)
    assert "</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nbright\n</tool_response><|im_end|>" in called


def test_with_one_sequence_an_episode_is_one_conversation(tmp_path: Path) -> None:
    found = Game(tmp_path, maxSequences=1).of_all(rows(BRANCHES))
    for (how, (_, message)), (_, outcome) in zip(BRANCHES.items(), found, strict=True):
        assert outcome.cause == "branch" and message in outcome.message, (how, outcome)
        assert "or raise maxSequences (400, too_many_sequences)" in outcome.message


def test_an_agent_that_hangs_is_cut_but_not_while_the_model_makes_a_turn(tmp_path: Path) -> None:
    [(played, outcome)] = Game(tmp_path, timeout=8.0).of_all([{"how": "hangs", "slow": 8.5}])
    assert outcome.failure == "timeout: play took more than 8 s, the environment's timeoutSeconds"
    assert played.course.turns == 1


def test_calls_that_are_not_found_as_they_are_written_are_refused(tmp_path: Path) -> None:
    """Otherwise each call would come as text, and no episode would use a tool."""
    game = Game(tmp_path, tool_format="llama3_json")
    [(played, outcome)] = game.of_all([{"how": "calls", "says": CALLS}])
    assert outcome.cause == "refused" and not played.course.turns
    assert "spec.environment.toolFormat: got llama3_json, but the model's chat template writes" in outcome.message


def test_a_worker_that_fails_ends_the_run_whatever_the_agent_makes_of_it(tmp_path: Path) -> None:
    with pytest.raises(LorarlError, match="a worker ended"):
        Game(tmp_path).of_all([{"how": "shrugs"}])


@pytest.mark.parametrize(
    ("name", "got"),
    [
        ("Nope", "has no such function"),
        ("narrow", "cannot be called with two arguments"),
        ("yields", "is a generator and returns no number"),
    ],
)
def test_what_is_no_agent_is_refused(tmp_path: Path, name: str, got: str) -> None:
    environment = Game(tmp_path, name=name).environment
    with pytest.raises(InputError) as refused:
        asyncio.run(environment.ready())
    environment.close()
    assert str(refused.value).startswith("spec.environment.agent: ") and got in str(refused.value)
