"""What the endpoint answers in the form of OpenAI's Responses API. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

from lorarl_api.v1alpha1 import RolloutSpec
from lorarl_trainer.rollout.endpoint.replies import Turn, logprobs_of
from lorarl_trainer.rollout.endpoint.requests import MODEL
from lorarl_trainer.rollout.endpoint.response_requests import ResponseRequest


def response_id(number: int) -> str:
    """Return the id of the response that is this turn of its episode."""
    return f"resp_{number}"


def response(turn: Turn, asked: ResponseRequest, rollout: RolloutSpec, now: int) -> dict[str, Any]:
    """Return the answer of /v1/responses. `now`: seconds since 1970."""
    cut = turn.finish == "length"
    usage = turn.usage
    answer = _begun(turn, asked, rollout, now) | {
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": _output(turn, asked),
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        },
    }
    ids = {"prompt_token_ids": list(turn.prompt_ids), "token_ids": list(turn.tokens)}
    return answer | (ids if asked.token_ids else {})


def events(turn: Turn, asked: ResponseRequest, rollout: RolloutSpec, now: int) -> Iterator[dict[str, Any]]:
    """Yield the same as a stream has it: each item's text or arguments in one piece."""
    numbers = count()

    def event(kind: str, **content: Any) -> dict[str, Any]:
        return {"type": f"response.{kind}", "sequence_number": next(numbers), **content}

    begun, whole = _begun(turn, asked, rollout, now), response(turn, asked, rollout, now)
    yield event("created", response=begun)
    yield event("in_progress", response=begun)
    for index, item in enumerate(whole["output"]):
        at = {"item_id": item["id"], "output_index": index}
        if item["type"] == "function_call":
            opened = item | {"arguments": "", "status": "in_progress"}
            yield event("output_item.added", output_index=index, item=opened)
            yield event("function_call_arguments.delta", **at, delta=item["arguments"])
            yield event("function_call_arguments.done", **at, name=item["name"], arguments=item["arguments"])
        else:
            [part] = item["content"]
            said = {**at, "content_index": 0}
            yield event("output_item.added", output_index=index, item=item | {"content": [], "status": "in_progress"})
            yield event("content_part.added", **said, part=part | {"text": "", "logprobs": []})
            yield event("output_text.delta", **said, delta=part["text"], logprobs=part["logprobs"])
            yield event("output_text.done", **said, text=part["text"], logprobs=part["logprobs"])
            yield event("content_part.done", **said, part=part)
        yield event("output_item.done", output_index=index, item=item)
    yield event(whole["status"], response=whole)


def _begun(turn: Turn, asked: ResponseRequest, rollout: RolloutSpec, now: int) -> dict[str, Any]:
    """Return a response before its output."""
    instructions = asked.instructions[0]["content"] if asked.instructions else None
    return {
        "id": response_id(turn.number),
        "object": "response",
        "created_at": now,
        "model": MODEL,
        "status": "in_progress",
        "output": [],
        "error": None,
        "incomplete_details": None,
        "instructions": instructions,
        "previous_response_id": asked.previous,
        "max_output_tokens": asked.max_tokens,
        "temperature": rollout.temperature,
        "top_p": rollout.top_p,
        "tools": [{"type": "function", "strict": False, **tool["function"]} for tool in asked.tools],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "text": {"format": {"type": "text"}},
        "truncation": "disabled",
        "metadata": asked.metadata,
        "usage": None,
    }


def _output(turn: Turn, asked: ResponseRequest) -> list[dict[str, Any]]:
    """Return the items of a turn: its calls, or else its text."""
    if calls := turn.message.get("tool_calls"):
        return [
            {
                "id": f"fc_{turn.number}_{number}",
                "type": "function_call",
                "call_id": call["id"],
                "name": call["function"]["name"],
                "arguments": json.dumps(call["function"]["arguments"]),
                "status": "completed",
            }
            for number, call in enumerate(calls, 1)
        ]
    said = {
        "type": "output_text",
        "text": turn.message["content"],
        "annotations": [],
        "logprobs": logprobs_of(turn, turn.pieces) if asked.logprobs else [],
    }
    status = "incomplete" if turn.finish == "length" else "completed"
    item = {"id": f"msg_{turn.number}", "type": "message", "role": "assistant", "status": status, "content": [said]}
    return [item]
