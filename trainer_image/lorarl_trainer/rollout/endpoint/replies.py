"""What the endpoint answers, in the forms of OpenAI's API and of vLLM's. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lorarl_trainer.rollout.endpoint.requests import MODEL, ChatRequest, RefusedError


@dataclass(frozen=True)
class Turn:
    """A turn of the model.

    Attributes:
        number: of the episode's turns, from 1 on.
        prompt_ids: all tokens before it.
        tokens: its own, and the one that ended it.
        logprobs: of each, in nats.
        pieces: the text of each; empty where it is not asked for.
        message: what it says, as a message of the assistant; its calls have objects as arguments.
        finish: why it ended.
    """

    number: int
    prompt_ids: Sequence[int]
    tokens: Sequence[int]
    logprobs: Sequence[float]
    pieces: Sequence[str]
    message: Mapping[str, Any]
    finish: Literal["stop", "length", "tool_calls"]

    @property
    def usage(self) -> dict[str, int]:
        """Numbers of tokens."""
        before, own = len(self.prompt_ids), len(self.tokens)
        return {"prompt_tokens": before, "completion_tokens": own, "total_tokens": before + own}


def completion(turn: Turn, asked: ChatRequest, now: int) -> dict[str, Any]:
    """Return the answer of /v1/chat/completions. `now`: seconds since 1970."""
    choice = {"index": 0, "message": _sent(turn.message), "finish_reason": turn.finish, "logprobs": None}
    if asked.logprobs:
        choice["logprobs"] = {"content": logprobs_of(turn, turn.pieces)}
    if asked.token_ids:
        choice["token_ids"] = list(turn.tokens)
    answer = _head(turn, "chat.completion", now) | {"choices": [choice], "usage": turn.usage}
    return answer | ({"prompt_token_ids": list(turn.prompt_ids)} if asked.token_ids else {})


def chunks(turn: Turn, asked: ChatRequest, now: int) -> Iterator[dict[str, Any]]:
    """Yield the same as a stream has it: a chunk with all of the turn, one with its end, and one with usage."""
    head = _head(turn, "chat.completion.chunk", now)
    [whole] = completion(turn, asked, now)["choices"]
    whole["delta"] = dict(whole.pop("message"))
    if calls := whole["delta"].get("tool_calls"):
        whole["delta"]["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
    prompt = {"prompt_token_ids": list(turn.prompt_ids)} if asked.token_ids else {}
    yield head | prompt | {"choices": [whole | {"finish_reason": None}]}
    yield head | {"choices": [{"index": 0, "delta": {}, "finish_reason": turn.finish, "logprobs": None}]}
    if asked.usage:
        yield head | {"choices": [], "usage": turn.usage}


def generated(turn: Turn) -> dict[str, Any]:
    """Return the answer of /inference/v1/generate."""
    choice = {
        "index": 0,
        "token_ids": list(turn.tokens),
        "finish_reason": "length" if turn.finish == "length" else "stop",
        "logprobs": {"content": logprobs_of(turn, [f"token_id:{token}" for token in turn.tokens])},
    }
    return {"request_id": f"turn-{turn.number}", "choices": [choice], "usage": turn.usage}


def models(max_model_len: int, now: int) -> dict[str, Any]:
    """Return the answer of /v1/models. `max_model_len`: tokens of an episode."""
    model = {"id": MODEL, "object": "model", "created": now, "owned_by": "lorarl", "max_model_len": max_model_len}
    return {"object": "list", "data": [model]}


def error(refused: RefusedError) -> dict[str, Any]:
    """Return an error as OpenAI's API has it."""
    kind = "invalid_request_error" if refused.status < 500 else "server_error"
    return {"error": {"message": str(refused), "type": kind, "param": refused.param, "code": refused.code}}


def _sent(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as the API has it: arguments are texts, and a message with calls has no content."""
    if not (calls := message.get("tool_calls")):
        return dict(message)
    sent = [
        call | {"function": call["function"] | {"arguments": json.dumps(call["function"]["arguments"])}}
        for call in calls
    ]
    return {**message, "content": None, "tool_calls": sent}


def _head(turn: Turn, kind: str, now: int) -> dict[str, Any]:
    return {"id": f"chatcmpl-{turn.number}", "object": kind, "created": now, "model": MODEL}


def logprobs_of(turn: Turn, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return each token's log-probability, in nats, beside its name."""
    return [
        {"token": name, "logprob": logprob, "bytes": list(name.encode(errors="replace")), "top_logprobs": []}
        for name, logprob in zip(names, turn.logprobs, strict=True)
    ]
