"""OpenAI's own client asks for responses: stateless, by the id of the one before, and as a stream."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from lorarl_api.v1alpha1 import RolloutSpec
from lorarl_trainer.rollout.endpoint.requests import MODEL, RefusedError
from lorarl_trainer.rollout.endpoint.response_requests import ResponseRequest, read_response
from unit.trainer.rollout.talk import Talk

ROLLOUT = RolloutSpec(temperature=0.7)
ASK = {"model": MODEL, "input": "Go."}
TOOL: Any = {
    "type": "function",
    "name": "look",
    "description": "Look a word up.",
    "strict": True,
    "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
}
LONG: Any = {"spec.rollout.maxPromptTokens": 2000, "spec.rollout.maxResponseTokens": 1000}
CALL = '<tool_call>{"name": "look", "arguments": {"word": "sun"}}</tool_call>'
AND: Any = {"role": "user", "content": [{"type": "input_text", "text": "And?"}]}


def call(name: str, arguments: str = "{}") -> dict[str, Any]:
    return {"type": "function_call", "call_id": name, "name": name, "arguments": arguments}


def test_items_are_read_as_messages_of_a_chat() -> None:
    asked = read_response(
        ASK
        | {
            "instructions": "Be brief.",
            "input": [
                {"role": "user", "content": "a"},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
                call("one", '{"x": 1}'),
                call("two"),
                {"type": "function_call_output", "call_id": "one", "output": "1"},
                {"type": "function_call_output", "call_id": "two", "output": [{"type": "input_text", "text": "2"}]},
                call("three"),
            ],
            "tools": [TOOL],
            "max_output_tokens": 9,
            "include": ["message.output_text.logprobs", "reasoning.encrypted_content"],
            "return_token_ids": True,
            "store": True,
            "truncation": "disabled",
            "temperature": 0.7,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "text": {"format": {"type": "text"}},
            "metadata": {},
            "reasoning": {},
        },
        ROLLOUT,
    )
    assert [message["role"] for message in asked.messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert asked.messages[1]["content"] == "b"
    assert [one["function"]["name"] for one in asked.messages[1]["tool_calls"]] == ["one", "two"]
    assert asked.messages[1]["tool_calls"][0]["function"]["arguments"] == {"x": 1}
    assert asked.messages[3] == {"role": "tool", "content": "2", "tool_call_id": "two"}
    assert list(asked.instructions) == [{"role": "system", "content": "Be brief."}]
    assert asked.tools[0]["function"] == {key: TOOL[key] for key in ("name", "description", "parameters")}
    assert (asked.max_tokens, asked.logprobs, asked.token_ids, asked.stream) == (9, True, True, False)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"input": []}, "input must be a text, or a list of items"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "thoughts of the model are in its text here"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "Send the item, or previous_response_id"),
        ({"input": [{"type": "web_search_call", "id": "a"}]}, "only messages, function_call and function_call_output"),
        ({"input": [{"role": "human", "content": "a"}]}, "input[0] has the role 'human'"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "images cannot be trained on"),
        ({"input": [call("f", "[1]")]}, "input[0] has a tool call without a function and JSON arguments"),
        ({"input": [{"type": "function_call_output", "output": "1"}]}, "input[0] needs the call_id"),
        ({"input": "\ud800"}, "no Unicode"),
        ({"instructions": 5}, "instructions is 5; it must be a text"),
        ({"tools": [{"type": "web_search"}]}, "tools[0] has the type 'web_search'; only functions are called here"),
        ({"tools": [{"type": "function"}]}, "tools[0] must be a function with a name"),
        ({"include": ["file_search_call.results"]}, "include has 'file_search_call.results'"),
        ({"temperature": 0.1}, "the job draws each turn with spec.rollout.temperature: 0.7"),
        ({"max_output_tokens": 0}, "max_output_tokens is 0"),
        ({"text": {"format": {"type": "json_object"}}}, "Leave text out"),
        ({"truncation": "auto"}, "Leave truncation out"),
        ({"reasoning": {"effort": "high"}}, "Leave reasoning out"),
        ({"background": True}, "Leave background out"),
        ({"stream": True, "stream_options": 7}, "stream_options must be a JSON object"),
        ({"metadata": "a"}, "metadata must be a JSON object"),
        ({"conversation": "c"}, "Leave conversation out"),
        ({"messages": []}, "Leave messages out"),
        ({"model": "gpt-5"}, "The model 'gpt-5' does not exist"),
    ],
)
def test_what_is_not_served_is_refused_with_the_reason(more: dict[str, Any], said: str) -> None:
    with pytest.raises(RefusedError) as refused:
        read_response(ASK | more, ROLLOUT)
    assert said in str(refused.value) and refused.value.cause == "refused"
    assert (refused.value.param in (*more, None) and refused.value.param != "messages") or "messages" in more


def test_a_conversation_continues_stateless_and_by_id(tmp_path: Path) -> None:
    talk = Talk(tmp_path)

    async def play() -> None:
        async with talk.client() as client:
            first = await client.responses.create(model=MODEL, instructions="Be brief.", input="Go.")
            assert (first.output_text, first.status, first.id) == ("I say 1", "completed", "resp_1")
            assert first.usage is not None and first.usage.output_tokens == len("I say 1") + 1
            given: Any = [{"role": "user", "content": "Go."}, *first.output, AND]
            second = await client.responses.create(model=MODEL, instructions="Be brief.", input=given)
            third = await client.responses.create(
                model=MODEL, instructions="Be brief.", input="More.", previous_response_id=second.id
            )
            assert third.previous_response_id == "resp_2"
            other = await client.responses.create(model=MODEL, input="More.", previous_response_id=second.id)
            assert other.instructions is None
            with pytest.raises(openai.NotFoundError, match="which is no response of this episode"):
                await client.responses.create(model=MODEL, input="More.", previous_response_id="resp_9")

    asyncio.run(play())
    (prompt, _, trained), (bare, _, later) = talk.sequences()
    assert prompt.startswith("<|im_start|>system\nBe brief.<|im_end|>")
    assert trained == "".join(f"I say {n}<|im_end|>" for n in (1, 2, 3))
    assert "Be brief." not in bare and later == "I say 4<|im_end|>", "instructions are not kept, as in OpenAI's API"
    assert talk.said.refusal is not None and talk.said.refusal.cause == "refused"


def test_calls_are_items_and_their_outputs_continue_the_turn(tmp_path: Path) -> None:
    talk = Talk(tmp_path, [CALL, "It is bright.", CALL, "Again."], **LONG)

    async def play() -> None:
        async with talk.client() as client:
            given: Any = [{"role": "user", "content": "Go."}]
            first = await client.responses.create(model=MODEL, input=given, tools=[TOOL])
            [item] = first.output
            assert item.type == "function_call" and json.loads(item.arguments) == {"word": "sun"}
            answer: Any = {"type": "function_call_output", "call_id": item.call_id, "output": "bright"}
            second = await client.responses.create(model=MODEL, input=[*given, item, answer], tools=[TOOL])
            assert second.output_text == "It is bright."
            third = await client.responses.create(
                model=MODEL, input=[AND], tools=[TOOL], previous_response_id=second.id
            )
            [item] = third.output
            answer = {"type": "function_call_output", "call_id": item.call_id, "output": "dark"}
            await client.responses.create(model=MODEL, input=[answer], tools=[TOOL], previous_response_id=third.id)

    asyncio.run(play())
    [(_, whole, trained)] = talk.sequences()
    assert trained == f"{CALL}<|im_end|>It is bright.<|im_end|>{CALL}<|im_end|>Again.<|im_end|>"
    assert "<tool_response>\nbright\n</tool_response>" in whole and "<tool_response>\ndark" in whole


def test_a_stream_has_the_events_of_openai_in_their_order(tmp_path: Path) -> None:
    talk = Talk(tmp_path, ["Hello.", CALL, "Hello."], **LONG)

    async def play() -> None:
        async with talk.client() as client:
            kinds, text = [], ""
            async with client.responses.stream(model=MODEL, input="Go.") as stream:
                async for event in stream:
                    kinds.append(event.type.removeprefix("response."))
                    text += event.delta if event.type == "response.output_text.delta" else ""
                final = await stream.get_final_response()
            assert text == final.output_text == "Hello."
            assert kinds == [
                *("created", "in_progress", "output_item.added", "content_part.added", "output_text.delta"),
                *("output_text.done", "content_part.done", "output_item.done", "completed"),
            ]
            events = await client.responses.create(model=MODEL, input="Go.", tools=[TOOL], stream=True)
            seen = [event async for event in events]
            assert [event.sequence_number for event in seen] == list(range(7))
            for event in seen:  # every field that the API requires is there, of its type
                TypeAdapter(ResponseStreamEvent).validate_python(event.model_dump(mode="json"), strict=False)
            last = seen[-1]
            assert last.type == "response.completed" and last.response.output[0].type == "function_call"
            cut = await client.responses.create(model=MODEL, input="Go.", max_output_tokens=2, stream=True)
            last = [event async for event in cut][-1]
            assert last.type == "response.incomplete" and last.response.incomplete_details is not None
            assert last.response.incomplete_details.reason == "max_output_tokens"

    asyncio.run(play())


def test_tokens_and_their_log_probabilities_come_on_request(tmp_path: Path) -> None:
    talk = Talk(tmp_path)

    async def play() -> Response:
        async with talk.client() as client:
            return await client.responses.create(
                model=MODEL,
                input="Go.",
                include=["message.output_text.logprobs"],
                extra_body={"return_token_ids": True},
            )

    answer = asyncio.run(play())
    Response.model_validate(answer.model_dump(mode="json"))
    extra, turn = answer.model_extra or {}, talk.played.first.turns[0]
    assert extra["token_ids"] == turn.tokens.tolist() and extra["prompt_token_ids"] == talk.played.first.row.prompt_ids
    [item] = answer.output
    assert item.type == "message" and item.content[0].type == "output_text"
    logprobs = item.content[0].logprobs
    assert logprobs is not None and [one.logprob for one in logprobs] == turn.logprobs.tolist()
    assert "".join(one.token for one in logprobs) == "I say 1<|im_end|>"
    assert read_response(ASK, ROLLOUT) == ResponseRequest(({"role": "user", "content": "Go."},))


def test_a_named_response_is_continued_though_another_said_the_same(tmp_path: Path) -> None:
    talk = Talk(tmp_path, ["A", "A", "of the second", "of the first", "of the second, once more"])

    async def play() -> None:
        async with talk.client() as client:
            first, second = [await client.responses.create(model=MODEL, input="Go.") for _ in range(2)]
            for one in (second, first, second):
                await client.responses.create(model=MODEL, input=[AND], previous_response_id=one.id)

    asyncio.run(play())
    one, two, three = talk.sequences()
    assert one[2] == "A<|im_end|>of the first<|im_end|>" and two[2] == "A<|im_end|>of the second<|im_end|>"
    assert three[2] == "of the second, once more<|im_end|>" and three[1].startswith("A<|im_end|>")


@pytest.mark.parametrize("by_id", [False, True])
def test_calls_of_one_turn_are_joined_though_their_outputs_lie_between(tmp_path: Path, by_id: bool) -> None:
    talk = Talk(tmp_path, [CALL + CALL, CALL, "It is bright.", "So it is."], **LONG)

    async def play() -> None:
        async with talk.client() as client:
            given: Any = [{"role": "user", "content": "Go."}]
            for _ in range(2):
                reply = await client.responses.create(model=MODEL, input=given, tools=[TOOL])
                for item in reply.output:
                    assert item.type == "function_call"
                    output = {"type": "function_call_output", "call_id": item.call_id, "output": item.call_id}
                    given += [item, output]
            reply = await client.responses.create(model=MODEL, input=given, tools=[TOOL])
            more: Any = {"input": [*given, *reply.output, AND]}
            if by_id:
                more = {"input": [AND], "previous_response_id": reply.id}
            await client.responses.create(model=MODEL, tools=[TOOL], **more)

    asyncio.run(play())
    [(_, whole, trained)] = talk.sequences()
    assert trained == f"{CALL}{CALL}<|im_end|>{CALL}<|im_end|>It is bright.<|im_end|>So it is.<|im_end|>"
    outputs = [whole.index(f"<tool_response>\ncall0000{number}") for number in (1, 2, 3)]
    assert outputs == sorted(outputs)


def test_calls_sent_again_beside_their_response_are_made_once(tmp_path: Path) -> None:
    talk = Talk(tmp_path, [CALL + CALL, "It is bright.", "Another."], **LONG)

    async def play() -> None:
        async with talk.client() as client:
            first = await client.responses.create(model=MODEL, input="Go.", tools=[TOOL])
            again: Any = []
            for item in first.output:
                assert item.type == "function_call"
                output = {"type": "function_call_output", "call_id": item.call_id, "output": item.call_id}
                again += [item.model_dump(mode="json"), output]
            other = [{**one, "arguments": '{"word": "moon"}'} if "arguments" in one else one for one in again]
            for items in (again, other):
                await client.responses.create(model=MODEL, input=items, tools=[TOOL], previous_response_id=first.id)

    asyncio.run(play())
    (_, whole, trained), (prompt, _, later) = talk.sequences()
    assert trained == f"{CALL}{CALL}<|im_end|>It is bright.<|im_end|>" and whole.count("<tool_response>") == 2
    assert prompt.count("moon") == 2 and later == "Another.<|im_end|>", "what was changed is another history"


def test_metadata_comes_back(tmp_path: Path) -> None:
    async def play() -> None:
        async with Talk(tmp_path).client() as client:
            reply = await client.responses.create(model=MODEL, input="Go.", metadata={"part": "7"})
            assert reply.metadata == {"part": "7"}
            assert (await client.responses.create(model=MODEL, input="Go.")).metadata == {}

    asyncio.run(play())
