"""What an agent may ask: the job's own way to draw, or nothing; all else is refused with what to change."""

from __future__ import annotations

from typing import Any

import pytest

from lorarl_api.v1alpha1 import RolloutSpec
from lorarl_trainer.rollout.endpoint.requests import MODEL, ChatRequest, RefusedError, read_chat, read_tokens

ROLLOUT = RolloutSpec(temperature=0.7, top_k=20, stop=["b", "a"])
SAID = {"role": "user", "content": "go"}
CHAT = {"model": MODEL, "messages": [SAID]}
TOKENS = {"model": MODEL, "token_ids": [1, 2], "sampling_params": {}}


def _calling(name: Any, arguments: str) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": name, "arguments": arguments}}]}


def refusal(body: Any) -> RefusedError:
    with pytest.raises(RefusedError) as refused:
        read_chat(body, ROLLOUT)
    return refused.value


@pytest.mark.parametrize(
    "more",
    [
        {"temperature": 0.7, "top_p": 1, "top_k": 20, "min_p": None, "stop": ["a", "b"], "n": 1, "logit_bias": {}},
        {"presence_penalty": 0.0, "frequency_penalty": 0, "response_format": {"type": "text"}, "tool_choice": "auto"},
        {"user": "me", "metadata": {"a": "b"}, "store": True, "stream": False, "seed": None, "top_logprobs": 0},
    ],
)
def test_what_changes_nothing_of_a_turn_is_taken(more: dict[str, Any]) -> None:
    assert read_chat(CHAT | more, ROLLOUT) == ChatRequest((SAID,))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"temperature": 0.0}, "temperature is 0.0, but the job draws each turn with spec.rollout.temperature: 0.7"),
        ({"top_p": 0.9}, "spec.rollout.topP: 1.0"),
        ({"top_k": -1}, "spec.rollout.topK: 20"),
        ({"min_p": 0.1}, "spec.rollout.minP: 0.0"),
        ({"stop": "\n"}, 'spec.rollout.stop: ["a", "b"]'),
        ({"seed": 7}, "Leave seed out of the request"),
        ({"n": 2}, "n is 2, which is not supported here. Leave n out of the request"),
        ({"presence_penalty": 0.5}, "Leave presence_penalty out"),
        ({"logit_bias": {"5": 100}}, "Leave logit_bias out"),
        ({"response_format": {"type": "json_object"}}, "Leave response_format out"),
        ({"tool_choice": "required"}, "Leave tool_choice out"),
        ({"guided_regex": "a+"}, "Leave guided_regex out"),
        ({"max_tokens": 0}, "max_tokens is 0; it must be a whole number from 1 on"),
        ({"max_completion_tokens": "5"}, "max_completion_tokens is '5'"),
        ({"messages": []}, "messages must be a list"),
        ({"messages": ["go"]}, "messages[0] must be a JSON object"),
        ({"messages": [{"role": "human", "content": "go"}]}, "messages[0] has the role 'human'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "images cannot be trained on"),
        ({"messages": [{"role": "user", "content": 0}]}, "messages[0] has a content that is no text"),
        ({"messages": [{"role": "user", "content": {}}]}, "messages[0] has a content that is no text"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "no Unicode"),
        ({"messages": [SAID, _calling("f", '{"x": "\\ud800"}')]}, "no Unicode"),
        ({"tools": [{"type": "function", "function": {"name": "f", "description": "\ud800"}}]}, "no Unicode"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]}, "a tool call without"),
        ({"messages": [SAID, _calling("f", "[1]")]}, "a tool call without a function and JSON arguments"),
        ({"messages": [SAID, _calling(5, "{}")]}, "a tool call without a function and JSON arguments"),
        ({"stop_token_ids": [5]}, "Leave stop_token_ids out"),
        ({"token_ids": [5]}, "Leave token_ids out"),
        ({"stream": 1}, "stream is 1; it must be true or false"),
        ({"logprobs": 1}, "logprobs is 1; it must be true or false"),
        ({"tools": [{"type": "function"}]}, "tools[0] must be a function with a name"),
        ({"tools": [{"function": {"name": "f", "parameters": {"properties": 3}}}]}, "no JSON schema"),
        ({"messages": [{"role": ["user"], "content": "go"}]}, "The request is malformed: TypeError"),
        ({"model": "gpt-4o"}, "The model 'gpt-4o' does not exist; the model that is trained is 'lorarl'"),
    ],
)
def test_what_would_draw_otherwise_or_is_no_request_is_refused(more: dict[str, Any], said: str) -> None:
    error = refusal(CHAT | more)
    assert said in str(error)
    assert error.status == (404 if "model" in more else 400) and error.cause == "refused"
    assert error.param == (next(iter(more)) if "JSON object" not in said and "malformed" not in said else None)


def test_a_body_of_another_kind_is_refused() -> None:
    assert "the body must be a JSON object" in str(refusal([CHAT]))


def test_messages_are_read_as_templates_take_them() -> None:
    called = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    asked = read_chat(
        CHAT
        | {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {"role": "assistant", "content": None, "tool_calls": [called], "refusal": None, "audio": None},
                {"role": "tool", "tool_call_id": "c", "content": "1"},
            ],
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "max_tokens": 9,
            "max_completion_tokens": 7,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
        ROLLOUT,
    )
    said, calls, result = asked.messages
    assert said == {"role": "user", "content": "ab"}
    assert calls == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}],
    }
    assert result == {"role": "tool", "content": "1", "tool_call_id": "c"}
    assert (asked.max_tokens, asked.stream, asked.usage) == (7, True, True)
    assert asked.tools[0]["function"]["parameters"] == {"type": "object", "properties": {}}


def test_tokens_are_read_as_training_clients_send_them() -> None:
    sampling = {
        "temperature": 0.7,
        "max_tokens": 24,
        "stop_token_ids": [2],
        "logprobs": 1,
        "skip_special_tokens": False,
    }
    asked = read_tokens(TOKENS | {"sampling_params": sampling, "cache_salt": "x", "priority": 0}, ROLLOUT, 10)
    assert (asked.token_ids, asked.max_tokens, asked.stop_token_ids) == ([1, 2], 24, [2])
    for more, said in (
        ({"token_ids": [10]}, "token_ids must be a list of numbers from 0 to 9"),
        ({"token_ids": [True]}, "token_ids must be a list"),
        ({"token_ids": []}, "at least one token"),
        ({"sampling_params": {"stop_token_ids": [-1]}}, "stop_token_ids must be"),
        ({"sampling_params": {"temperature": 1.0}}, "spec.rollout.temperature: 0.7"),
        ({"sampling_params": []}, None),
        ({"features": {}}, "Leave features out"),
        ({"stream": True}, "Leave stream out"),
        ({"max_tokens": 3}, "Leave max_tokens out"),
    ):
        if said is None:
            read_tokens(TOKENS | more, ROLLOUT, 10)
            continue
        with pytest.raises(RefusedError) as refused:
            read_tokens(TOKENS | more, ROLLOUT, 10)
        assert said in str(refused.value)
