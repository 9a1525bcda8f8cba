"""What an agent may ask of the endpoint, in the forms of OpenAI's API and of vLLM's. Pure functions.

Each turn is drawn as the manifest says, and trained at the same temperature. So a request may ask for that, or for
nothing: what would draw otherwise is refused, never ignored.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from lorarl_api.v1alpha1 import RolloutSpec
from lorarl_trainer.data.cells import ASSISTANT, ROLES, Message, brief
from lorarl_trainer.rewards.scores import Cause

MODEL = "lorarl"
"""The model's name at the endpoint."""
_PATHS = "POST /v1/chat/completions, POST /v1/responses, POST /inference/v1/generate and GET /v1/models"
_NEUTRAL: Mapping[str, Any] = {
    "n": 1,
    "best_of": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1,
    "min_tokens": 0,
    "logit_bias": {},
    "top_logprobs": 0,
    "ignore_eos": False,
    "stream": False,
    "stop_token_ids": [],
    "echo": False,
    "bad_words": [],
    "response_format": {"type": "text"},
    "tool_choice": "auto",
    "parallel_tool_calls": True,
}
"""What these mean is not done. A client may send the value that asks for nothing."""
_OF_NO_EFFECT = frozenset(
    (
        *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "request_id"),
        *("cache_salt", "priority", "routed_experts_prompt_start", "skip_special_tokens", "detokenize"),
        *("spaces_between_special_tokens", "model"),
    )
)
"""These change nothing of what is drawn."""
_OF_CHAT = frozenset(
    (
        *("messages", "tools", "max_tokens", "max_completion_tokens"),
        *("stream", "stream_options", "logprobs", "return_token_ids"),
    )
)
_OF_TOKENS = frozenset(("token_ids", "sampling_params"))
_OF_SAMPLING = frozenset(("max_tokens", "stop_token_ids", "logprobs"))
"""These are read below, each in its place."""
_TEXTS = frozenset(("text", "input_text", "output_text"))
"""Types of a content's parts."""


class RefusedError(Exception):
    """A request that is not answered."""

    def __init__(
        self,
        message: str,
        *,
        cause: Cause = "refused",
        limit: Literal["turns", "tokens"] | None = None,
        status: int = 400,
        code: str = "invalid_request",
        param: str | None = None,
    ) -> None:
        """Say why, and what to change.

        Args:
            message: for people.
            cause: why the episode fails.
            limit: the limit that has ended the episode, which does not fail then.
            status: of HTTP.
            code: for programs.
            param: the key of the request that is wrong.
        """
        super().__init__(message)
        self.cause, self.limit, self.status, self.code, self.param = cause, limit, status, code, param


@dataclass(frozen=True)
class ChatRequest:
    """A conversation that the model is to continue.

    Attributes:
        tools: JSON schemas of functions; empty for none.
        max_tokens: of the turn; None for the job's limits alone.
        stream: whether it is answered by server-sent events. `usage`: with the numbers of tokens at their end.
        logprobs, token_ids: whether the answer has those.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    max_tokens: int | None = None
    stream: bool = False
    usage: bool = False
    logprobs: bool = False
    token_ids: bool = False


@dataclass(frozen=True)
class TokensRequest:
    """Tokens that the model is to continue.

    Attributes:
        max_tokens: see `ChatRequest`.
        stop_token_ids: any of them ends the turn, beside the job's.
    """

    token_ids: Sequence[int]
    max_tokens: int | None = None
    stop_token_ids: Sequence[int] = ()


def read_chat(body: Any, rollout: RolloutSpec) -> ChatRequest:
    """Read what is sent to /v1/chat/completions. Raises RefusedError if it asks for what this server does not do."""
    with as_refused():
        return _chat(body, rollout)


def _chat(body: Any, rollout: RolloutSpec) -> ChatRequest:
    given = as_object(body, "the body")
    require_model(given.get("model"))
    require_drawn_alike(given, rollout, _OF_CHAT)
    messages = given.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RefusedError("messages must be a list of messages with role and content", param="messages")
    limits = [positive(given, name) for name in ("max_tokens", "max_completion_tokens")]
    return ChatRequest(
        in_unicode([_message(one, f"messages[{number}]") for number, one in enumerate(messages)], "messages"),
        tools_of(given, read_tool),
        min(filter(None, limits), default=None),
        stream=switch(given, "stream"),
        usage=switch(as_object(given.get("stream_options") or {}, "stream_options"), "include_usage"),
        logprobs=switch(given, "logprobs"),
        token_ids=switch(given, "return_token_ids"),
    )


def read_tokens(body: Any, rollout: RolloutSpec, vocabulary_size: int) -> TokensRequest:
    """Read what is sent to /inference/v1/generate. Raises RefusedError if it asks for what this server does not do."""
    with as_refused():
        return _tokens(body, rollout, vocabulary_size)


def _tokens(body: Any, rollout: RolloutSpec, vocabulary_size: int) -> TokensRequest:
    given = as_object(body, "the body")
    if given.get("model") is not None:
        require_model(given["model"])
    asked = as_object(given.get("sampling_params") or {}, "sampling_params")
    require_drawn_alike(given, rollout, _OF_TOKENS)
    require_drawn_alike(asked, rollout, _OF_SAMPLING)
    ids, stops = given.get("token_ids"), asked.get("stop_token_ids") or []
    for name, some in (("token_ids", ids), ("stop_token_ids", stops)):
        if not isinstance(some, list) or not all(type(one) is int and 0 <= one < vocabulary_size for one in some):
            raise RefusedError(f"{name} must be a list of numbers from 0 to {vocabulary_size - 1}", param=name)
    if not ids:
        raise RefusedError("token_ids must have at least one token", param="token_ids")
    return TokensRequest(ids, positive(asked, "max_tokens"), stops)


@contextlib.contextmanager
def as_refused() -> Iterator[None]:
    """Refuse what has an unexpected type somewhere inside."""
    try:
        yield
    except (TypeError, AttributeError, KeyError, ValueError, RecursionError) as error:
        raise RefusedError(f"The request is malformed: {type(error).__name__}: {error}") from error


def unknown_path(method: str, path: str) -> RefusedError:
    """Return the error of a path that is not served."""
    return RefusedError(f"{method} {path} is not served here; {_PATHS} are", status=404, code="not_found")


def as_object(value: Any, what: str) -> Mapping[str, Any]:
    """Return what must be a JSON object. `what`: as errors name it."""
    if not isinstance(value, dict):
        raise RefusedError(f"{what} must be a JSON object")
    return value


def require_model(name: Any) -> None:
    """Refuse any model but the one that is trained."""
    if name != MODEL:
        message = f"The model {name!r} does not exist; the model that is trained is {MODEL!r}, which is llm.model"
        raise RefusedError(message, status=404, code="model_not_found", param="model")


def require_drawn_alike(
    given: Mapping[str, Any],
    rollout: RolloutSpec,
    read: Collection[str],
    neutral: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Refuse what would draw otherwise, and what is not read. `neutral`: further values that ask for nothing."""
    neutral = {**_NEUTRAL, **neutral}
    own = {
        "temperature": ("temperature", rollout.temperature),
        "top_p": ("topP", rollout.top_p),
        "top_k": ("topK", rollout.top_k or 0),
        "min_p": ("minP", rollout.min_p),
        "stop": ("stop", sorted(rollout.stop)),
    }
    for name, value in given.items():
        if value is None or name in _OF_NO_EFFECT or name in read or (name in neutral and value == neutral[name]):
            continue
        if name in own:
            field, expected = own[name]
            if _plain(name, value) not in (expected, []):
                raise RefusedError(
                    f"{name} is {brief(value)}, but the job draws each turn with spec.rollout.{field}: "
                    f"{json.dumps(expected)}, and trains at that. Leave {name} out of the request, or change the "
                    "manifest",
                    param=name,
                )
        elif name == "seed":
            message = "seed cannot be chosen: spec.trainer.seed decides on each episode. Leave seed out of the request"
            raise RefusedError(message, param=name)
        else:
            message = f"{name} is {brief(value)}, which is not supported here. Leave {name} out of the request"
            raise RefusedError(message, param=name)


def _plain(name: str, value: Any) -> Any:
    if name == "stop":
        return sorted({value} if isinstance(value, str) else set(map(str, value)))
    return 0 if name == "top_k" and value == -1 else value


def positive(given: Mapping[str, Any], name: str) -> int | None:
    """Return a number from 1 on, or None."""
    value = given.get(name)
    if value is not None and (type(value) is not int or value < 1):
        raise RefusedError(f"{name} is {brief(value)}; it must be a whole number from 1 on", param=name)
    return value


def in_unicode[One](read: Sequence[One], name: str) -> tuple[One, ...]:
    """Return what was read of a request, unless a tokenizer would not take a text somewhere inside."""
    try:
        json.dumps(read, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise RefusedError(f"{name} has a text that is no Unicode", param=name) from None
    return tuple(read)


def switch(given: Mapping[str, Any], name: str) -> bool:
    """Return a value that is true or false, and false if it is absent."""
    value = given.get(name)
    if not isinstance(value, bool | None):
        raise RefusedError(f"{name} is {brief(value)}; it must be true or false", param=name)
    return bool(value)


def _message(value: Any, where: str) -> Message:
    """Return a message as chat templates take it: its content is a text, and arguments of calls are objects."""
    given = as_object(value, where)
    if (role := given.get("role")) not in ROLES:
        raise RefusedError(f"{where} has the role {brief(role)}, which no chat template knows", param="messages")
    message: dict[str, Any] = {"role": role, "content": content_of(given.get("content"), where)}
    if role == ASSISTANT and given.get("tool_calls"):
        message["tool_calls"] = [read_call(one, where) for one in given["tool_calls"]]
    return message | {key: given[key] for key in ("name", "tool_call_id") if isinstance(given.get(key), str)}


def content_of(value: Any, where: str) -> str:
    """Return the text of a content."""
    parts = value if isinstance(value, list) else [{"type": "text", "text": "" if value is None else value}]
    text = ""
    for part in parts:
        more = part.get("text") if isinstance(part, dict) and part.get("type") in _TEXTS else None
        if not isinstance(more, str):
            message = f"{where} has a content that is no text; images cannot be trained on"
            raise RefusedError(message, param=where.partition("[")[0])
        text += more
    return text


def read_call(value: Any, where: str) -> dict[str, Any]:
    """Return a call of a tool, whose arguments are an object."""
    try:
        function = value["function"]
        name, arguments = function["name"], function["arguments"]
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        if not (isinstance(name, str) and isinstance(arguments, dict)):
            raise TypeError
    except (TypeError, KeyError, ValueError):
        message = f"{where} has a tool call without a function and JSON arguments"
        raise RefusedError(message, param=where.partition("[")[0]) from None
    return {"id": value.get("id"), "type": "function", "function": {"name": name, "arguments": arguments}}


def tools_of(given: Mapping[str, Any], read: Callable[[Any, str], dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Return the tools of a request, each as `read` returns it. It also gets where the tool is, for errors."""
    tools = given.get("tools") or []
    if not isinstance(tools, list):
        raise RefusedError("tools must be a list of functions", param="tools")
    return in_unicode([read(one, f"tools[{number}]") for number, one in enumerate(tools)], "tools")


def read_tool(value: Any, where: str) -> dict[str, Any]:
    """Return a tool as chat templates take it."""
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RefusedError(f"{where} must be a function with a name", param="tools")
    parameters = {"type": "object", "properties": {}} | (function.get("parameters") or {})
    if not isinstance(own := parameters["properties"], dict) or not all(isinstance(one, dict) for one in own.values()):
        raise RefusedError(f"{where} has parameters that are no JSON schema of an object", param="tools")
    return {"type": "function", "function": {**function, "parameters": parameters}}
