"""What an episode's agent and the model say, exact to the token, whatever the agent does with the texts.

A request that continues the conversation has all messages so far, the model's as they were sent, and new ones after
them. Only those are encoded, by the bridge of all episodes: what the model made stays as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.data.bridge import Bridge
from lorarl_trainer.data.cells import ASSISTANT, Message
from lorarl_trainer.data.rows import Row
from lorarl_trainer.data.tool_calls import CallParser, ToolCall, Tools
from lorarl_trainer.errors import InputError
from lorarl_trainer.rewards.environment.worker import MOST_CHARACTERS
from lorarl_trainer.rewards.scores import Outcome
from lorarl_trainer.rollout.endpoint.replies import Turn
from lorarl_trainer.rollout.endpoint.requests import ChatRequest, RefusedError, TokensRequest
from lorarl_trainer.rollout.played import Played
from lorarl_trainer.samples.sample import Completion

type Ask = Callable[[int, Sequence[int]], Awaitable[Completion]]
"""Has the next turn of at most so many tokens made, which these end beside the job's, and adds it to what is played."""
type Asked = ChatRequest | TokensRequest
_ONE = "An episode is one conversation: send all messages so far as they were, and new ones after them"


@dataclass(frozen=True)
class Speech:
    """How messages become tokens, and turns become texts.

    Attributes:
        decode, decode_all: without and with special tokens.
        parser: finds calls of tools in turns.
    """

    bridge: Bridge
    decode: Callable[[Sequence[Any]], list[str]]
    decode_all: Callable[[Sequence[Any]], list[str]]
    parser: Callable[[Tools], CallParser]


@dataclass
class _Asked:
    """A request that is being answered, or was.

    Attributes:
        is_gone: whether the client that asked no longer waits.
        delivered: whether it waited until the answer was there.
    """

    request: Asked
    is_gone: Callable[[], bool]
    turn: asyncio.Task[Turn]
    delivered: bool = False

    @property
    def has_broken(self) -> bool:
        """Whether a worker failed."""
        if not self.turn.done() or self.turn.cancelled():
            return False
        return not isinstance(self.turn.exception(), RefusedError | None)

    @property
    def is_lost(self) -> bool:
        """Whether no client gets the answer."""
        return not self.delivered if self.turn.done() else self.is_gone()


@dataclass
class Conversation:
    """What is said in one episode.

    Attributes:
        played: the episode, which it fills.
        ask: see `Ask`.
        waiting: the agent's clock stands still within it.
        met_limit: whether a request was refused because a limit of turns or tokens had ended the episode.
        refusal: of the first request that was refused for another reason.
    """

    spec: LoRARLJobSpec
    speech: Speech
    played: Played
    ask: Ask
    waiting: Callable[[], contextlib.AbstractContextManager[None]]
    met_limit: bool = False
    refusal: Outcome | None = None
    _messages: Sequence[Message] | None = None
    _tools: Tools = ()
    _parser: CallParser | None = None
    _names: dict[str, str] = field(default_factory=dict)
    _last: _Asked | None = None
    _over: bool = False

    async def answer(self, request: Asked, is_gone: Callable[[], bool]) -> Turn:
        """Return the model's next turn.

        A client that lost its connection may ask again: it gets the turn that was made for it.

        Raises:
            RefusedError: the request does not fit the episode.
            LorarlError: a worker failed.
        """
        last = self._last
        if last is not None and last.has_broken:
            await last.turn  # a client may ask again, but the run ends
        if last is not None and last.request == request and last.is_lost and not self._over:
            last.is_gone = is_gone
        elif self._over or (last is not None and not last.turn.done()):
            what = "The episode is over" if self._over else "Another request of this episode is being answered"
            raise self.refused(RefusedError(f"{what}. {_ONE}", cause="branch", code="second_conversation"))
        else:
            last = self._last = _Asked(request, is_gone, asyncio.ensure_future(self._made(request)))
        turn = await asyncio.shield(last.turn)
        last.delivered = last.delivered or not is_gone()
        return turn

    def refused(self, error: RefusedError) -> RefusedError:
        """Remember and return why a request was refused: an episode fails for the first one, but for its limits."""
        if error.limit is not None:
            self.met_limit = True
        elif self.refusal is None:
            self.refusal = Outcome.failed(error.cause, f"{error} ({error.status}, {error.code})")
        return error

    async def end(self) -> None:
        """Wait for the turn that is being made, and answer no more. Raises what a worker raised."""
        self._over = True
        if self._last is not None:
            with contextlib.suppress(RefusedError):
                await self._last.turn

    def close(self) -> None:
        """Stop waiting for a turn."""
        if self._last is not None:
            self._last.turn.cancel()

    async def _made(self, request: Asked) -> Turn:
        try:
            return await (self._chat(request) if isinstance(request, ChatRequest) else self._continued(request))
        except RefusedError as error:
            raise self.refused(error) from None
        except InputError as error:  # of the chat template, or of the format of tool calls
            raise self.refused(RefusedError(str(error))) from error

    async def _chat(self, asked: ChatRequest) -> Turn:
        self._require_turns()
        more = self._read(asked) if self.played.turns else self._opened(asked)
        made = await self._turn(more, asked.max_tokens, ())
        turn = self._described(made, pieces=asked.logprobs)
        self._messages = [*asked.messages, turn.message]
        return turn

    async def _continued(self, asked: TokensRequest) -> Turn:
        self._require_turns()
        known = self._tokens
        if not self.played.turns:
            self._require_room(len(asked.token_ids))
            self.played.row = replace(self.played.row, prompt_ids=list(asked.token_ids))
            known = list(asked.token_ids)
        elif list(asked.token_ids[: len(known)]) != known:
            message = f"token_ids do not begin with the {len(known)} tokens of the episode so far. {_ONE}"
            raise RefusedError(message, cause="branch", code="second_conversation", param="token_ids")
        made = await self._turn(asked.token_ids[len(known) :], asked.max_tokens, asked.stop_token_ids)
        self._messages, self._parser = None, None
        return self._described(made, pieces=False)

    @property
    def _tokens(self) -> list[int]:
        return [*self.played.row.prompt_ids, *self.played.response]

    def _require_turns(self) -> None:
        assert self.spec.environment is not None, "it makes this job's episodes"
        if len(self.played.turns) == (most := self.spec.environment.max_turns):
            self.played.ended = "turns"
            message = f"The episode has had its {most} turns of the model, spec.environment.maxTurns"
            raise RefusedError(message, limit="turns", code="episode_over")

    def _require_room(self, length: int) -> None:
        if length > (most := self.spec.rollout.max_prompt_tokens):
            message = f"The first request has {length:,} tokens; spec.rollout.maxPromptTokens is {most:,}"
            raise RefusedError(message, cause="too_long", code="context_length_exceeded", param="messages")

    def _opened(self, asked: ChatRequest) -> list[int]:
        row = self.played.row
        tools: Any = list(asked.tools) or None
        _require_short((asked.messages, asked.tools))
        opened = self.speech.bridge.opened(replace(row, row=replace(row.row, tools=tools)), list(asked.messages))
        self._require_room(len(opened.prompt_ids))
        if tools:
            self._parser = self._parser_of(opened.row, tools)
        self.played.row, self._tools = opened, asked.tools
        return []

    def _parser_of(self, row: Row, tools: Tools) -> CallParser:
        """Return what finds calls of these tools. Raises InputError if it does not find what the template writes."""
        bridge, parser = self.speech.bridge, self.speech.parser(tools)
        bridge.require(row)
        call = ToolCall(tools[0]["function"]["name"], {})
        try:
            written = bridge.call(row, call.name, {})
        except InputError:  # templates that show no calls of the past are no worse for new ones
            return parser
        parser.require_read(written, call)
        return parser

    def _read(self, asked: ChatRequest) -> list[int]:
        """Return the tokens between the last turn and the next one."""
        known = self._messages or ()
        fork = next((n for n, one in enumerate(known) if not _is_same(asked.messages[n : n + 1], one)), len(known))
        new = asked.messages[len(known) :]
        if self._messages is None or fork < len(known) or list(asked.tools) != list(self._tools):
            what = "The tools have changed"
            if self._messages is None:
                what = "What was generated from tokens is continued with tokens"
            elif fork < len(known):
                place = "end before" if fork == len(asked.messages) else "are others before"
                what = f"The messages {place} the model's last turn, from messages[{fork}] on"
            raise RefusedError(f"{what}. {_ONE}", cause="branch", code="second_conversation", param="messages")
        if not new or any(message["role"] == ASSISTANT for message in new):
            message = "New messages must follow the model's turn, and none of them may be the assistant's"
            raise RefusedError(message, cause="branch", code="second_conversation", param="messages")
        _require_short(new)
        named = [self._with_name(message) for message in new]
        return self.speech.bridge.messages(self.played.row.row, named, ended=self._has_ended(self.played.turns[-1]))

    def _with_name(self, message: Message) -> Message:
        """Return a message which, if it is a tool's, has the name of the tool: some templates write it."""
        if message["role"] != "tool":
            return message
        if (name := self._names.get(message.get("tool_call_id", ""))) is None:
            raise RefusedError("A message of a tool needs the tool_call_id of a call of the model", param="messages")
        return {"role": "tool", "name": name, "content": message["content"]}

    async def _turn(self, more: Sequence[int], wanted: int | None, stops: Sequence[int]) -> Completion:
        """Have a turn made after some more tokens."""
        environment, played = self.spec.environment, self.played
        assert environment is not None, "it makes this job's episodes"
        left = self.spec.rollout.max_response_tokens - len(played.response) - len(more)
        if left <= 0:
            played.ended = "tokens"
            message = f"No room is left for a turn: {-left} tokens more than spec.rollout.maxResponseTokens"
            raise RefusedError(message, limit="tokens", code="context_length_exceeded", param="messages")
        most = min(left, environment.max_turn_tokens or left)
        played.append(more, made=False)
        with self.waiting():
            made = await self.ask(min(most, wanted or most), stops)
        played.ended = "tokens" if not made.finished and (wanted or most) >= most else "done"
        return made

    def _has_ended(self, made: Completion) -> bool:
        """Whether a turn ended with a stop token, and not with a text of `rollout.stop`, or at a limit."""
        return bool(made.finished and made.tokens[-1] in self.speech.bridge.stop_ids)

    def _described(self, made: Completion, *, pieces: bool) -> Turn:
        """Return a turn as the agent sees it, with the text of each token or not."""
        speech, tokens = self.speech, made.tokens.tolist()
        message: dict[str, Any] = {"role": ASSISTANT, "content": speech.decode([tokens])[0]}
        found: list[ToolCall] = []
        if self._parser is not None and made.finished:
            found = self._parser.calls(speech.decode_all([tokens[: len(tokens) - self._has_ended(made)]])[0])
        if any(call.fault for call in found):
            found = []  # a turn with a call that cannot be read is shown as it is
        calls = {f"call{len(self._names) + number:05d}": call for number, call in enumerate(found, 1)}
        self._names |= {key: call.name for key, call in calls.items()}
        if calls:
            message["tool_calls"] = [
                {
                    "id": key,
                    "type": "function",
                    "function": {"name": call.name, "arguments": dict(call.arguments or {})},
                }
                for key, call in calls.items()
            ]
        return Turn(
            number=len(self.played.turns),
            prompt_ids=(known := self._tokens)[: len(known) - len(tokens)],
            tokens=tokens,
            # The best token, which a greedy turn takes, is the only one possible.
            logprobs=made.logprobs.tolist() if len(made.logprobs) else [0.0] * len(tokens),
            pieces=speech.decode_all([[token] for token in tokens]) if pieces else (),
            message=message,
            finish="tool_calls" if calls else "stop" if made.finished else "length",
        )


def _require_short(new: Sequence[Any]) -> None:
    """Refuse what would take long to encode, while all other episodes wait: no model reads it."""
    if (length := len(json.dumps(new, ensure_ascii=False))) > MOST_CHARACTERS:
        message = f"The new messages have {length:,} characters; at most {MOST_CHARACTERS:,} are read"
        raise RefusedError(message, cause="too_long", code="context_length_exceeded", param="messages")


def _is_same(given: Sequence[Message], known: Message) -> bool:
    """Whether there is a message, and it is the known one. Clients trim what the model says, and leave out keys."""
    if not given or given[0]["role"] != known["role"]:
        return False
    [one] = given
    if known["role"] != ASSISTANT:
        return bool(one == known)
    said = [call["function"] for call in known.get("tool_calls", ())]
    if said or one.get("tool_calls"):
        return said == [call["function"] for call in one.get("tool_calls", ())]
    return bool(one["content"].strip() == known["content"].strip())
