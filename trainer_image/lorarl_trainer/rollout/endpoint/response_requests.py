"""What an agent may ask in the form of OpenAI's Responses API: messages and calls are items of one list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lorarl_api.v1alpha1 import RolloutSpec
from lorarl_trainer.data.cells import ASSISTANT, ROLES, Message, brief
from lorarl_trainer.rollout.endpoint.requests import (
    ChatRequest,
    RefusedError,
    as_object,
    as_refused,
    content_of,
    in_unicode,
    positive,
    read_call,
    read_tool,
    require_drawn_alike,
    require_model,
    switch,
    tools_of,
)

_READ = frozenset(
    (
        *("input", "instructions", "tools", "max_output_tokens", "stream", "stream_options", "include"),
        *("previous_response_id", "return_token_ids"),
    )
)
_NEUTRAL: Mapping[str, Any] = {
    "background": False,
    "text": {"format": {"type": "text"}},
    "truncation": "disabled",
    "reasoning": {},
    "prompt_cache_retention": "in_memory",
}
"""A client may send the value that asks for nothing."""
_LOGPROBS, _ENCRYPTED = "message.output_text.logprobs", "reasoning.encrypted_content"
_NO_THOUGHTS = "thoughts of the model are in its text here, so no reasoning comes from this server. Leave the item out"
_NOT_READ = {
    "reasoning": _NO_THOUGHTS,
    "item_reference": "items are not kept by their ids. Send the item, or previous_response_id",
}


@dataclass(frozen=True)
class ResponseRequest(ChatRequest):
    """A response that is wanted. `messages` are those of its input.

    Attributes:
        instructions: the message before all others; empty without any.
        previous: the response whose messages come before those of the input; None for none.
        metadata: of the client, which gets it back.
    """

    instructions: Sequence[Message] = ()
    previous: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


def read_response(body: Any, rollout: RolloutSpec) -> ResponseRequest:
    """Read what is sent to /v1/responses. Raises RefusedError if it asks for what this server does not do."""
    with as_refused():
        return _response(body, rollout)


def _response(body: Any, rollout: RolloutSpec) -> ResponseRequest:
    given = as_object(body, "the body")
    require_model(given.get("model"))
    require_drawn_alike(given, rollout, _READ, _NEUTRAL)
    items, included = given.get("input"), given.get("include") or []
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if not isinstance(items, list) or not items:
        raise RefusedError("input must be a text, or a list of items", param="input")
    if unknown := [one for one in included if one not in (_LOGPROBS, _ENCRYPTED)]:
        raise RefusedError(f"include has {brief(unknown[0])}; only {_LOGPROBS} is there to include", param="include")
    for name in ("instructions", "previous_response_id"):
        if not isinstance(given.get(name), str | None):
            raise RefusedError(f"{name} is {brief(given[name])}; it must be a text", param=name)
    as_object(given.get("stream_options") or {}, "stream_options")  # a stream has no usage to leave out
    instructions = given.get("instructions")
    before: list[Message] = [] if instructions is None else [{"role": "system", "content": instructions}]
    return ResponseRequest(
        in_unicode(list(_joined(items)), "input"),
        tools_of(given, _tool),
        positive(given, "max_output_tokens"),
        stream=switch(given, "stream"),
        logprobs=_LOGPROBS in included,
        token_ids=switch(given, "return_token_ids"),
        instructions=in_unicode(before, "instructions"),
        previous=given.get("previous_response_id"),
        metadata=as_object(given.get("metadata") or {}, "metadata"),
    )


def _joined(items: Sequence[Any]) -> Iterator[Message]:
    """Yield items as messages. Calls that follow each other, or a text of the model, are of one turn."""
    turn: Message | None = None
    for number, one in enumerate(items):
        read = _read(as_object(one, f"input[{number}]"), f"input[{number}]")
        if turn is not None and read["role"] == ASSISTANT and "tool_calls" in read:
            turn = {**turn, "tool_calls": [*turn.get("tool_calls", ()), *read["tool_calls"]]}
            continue
        if turn is not None:
            yield turn
        turn = read
        if read["role"] != ASSISTANT:
            yield read
            turn = None
    if turn is not None:
        yield turn


def _read(item: Mapping[str, Any], where: str) -> Message:
    """Return an item as a message."""
    kind = item.get("type") or "message"
    if kind == "message":
        if (role := item.get("role")) not in ROLES:
            raise RefusedError(f"{where} has the role {brief(role)}, which no chat template knows", param="input")
        return {"role": role, "content": content_of(item.get("content"), where)}
    if kind == "function_call":
        call = {"id": item.get("call_id"), "function": {key: item[key] for key in ("name", "arguments") if key in item}}
        return {"role": ASSISTANT, "content": "", "tool_calls": [read_call(call, where)]}
    if kind == "function_call_output":
        if not isinstance(item.get("call_id"), str):
            raise RefusedError(f"{where} needs the call_id of a function_call", param="input")
        return {"role": "tool", "content": content_of(item.get("output"), where), "tool_call_id": item["call_id"]}
    why = _NOT_READ.get(str(kind), "only messages, function_call and function_call_output are read")
    raise RefusedError(f"{where} is an item of the type {brief(kind)}: {why}", param="input")


def _tool(value: Any, where: str) -> dict[str, Any]:
    """Return a function as chat templates take it. Nothing forces arguments into its schema, `strict` or not."""
    given = as_object(value, where)
    if given.get("type") != "function":
        message = f"{where} has the type {brief(given.get('type'))}; only functions are called here"
        raise RefusedError(message, param="tools")
    return read_tool({"function": {key: given[key] for key in _OF_FUNCTION if given.get(key) is not None}}, where)


_OF_FUNCTION = ("name", "description", "parameters")
