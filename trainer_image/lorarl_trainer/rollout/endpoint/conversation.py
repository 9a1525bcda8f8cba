"""What an episode's agent and the model say, exact to the token, whatever the agent does with the texts.

A request that continues what was said has all messages up to a turn of the model, that turn as it was sent, and new
ones after it. Only those are encoded, by the bridge of all episodes: what the model made stays as it is. Any other
request begins a further sequence of tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lorarl_api.v1alpha1 import EnvironmentSpec, LoRARLJobSpec
from lorarl_trainer.data.bridge import Bridge
from lorarl_trainer.data.cells import ASSISTANT, Message
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.data.rows import Row
from lorarl_trainer.data.tool_calls import CallParser, ToolCall, Tools
from lorarl_trainer.errors import InputError
from lorarl_trainer.rewards.environment.worker import MOST_CHARACTERS
from lorarl_trainer.rewards.scores import Outcome
from lorarl_trainer.rollout.endpoint.places import (
    Place,
    continued,
    continued_tokens,
    difference,
    with_joined_calls,
)
from lorarl_trainer.rollout.endpoint.replies import Turn
from lorarl_trainer.rollout.endpoint.requests import ChatRequest, RefusedError, TokensRequest
from lorarl_trainer.rollout.endpoint.response_replies import response_id
from lorarl_trainer.rollout.endpoint.response_requests import ResponseRequest
from lorarl_trainer.rollout.played import Played, PlayedSequence
from lorarl_trainer.samples.sample import Completion

type Ask = Callable[[PlayedSequence, int, Sequence[int]], Awaitable[Completion]]
"""Has the next turn of a sequence made, of at most so many tokens, which these end beside the job's, and adds it."""
type Asked = ChatRequest | TokensRequest
_MESSAGES = "Send all messages and tools as they were, and new messages after them"
_TOKENS = "Send all tokens up to the end of a turn as they were, and new ones after them"
_ONCE = "It continues a turn that another request has continued or is continuing. Continue each turn once"
"""What an agent with too many sequences can change."""


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
    """A request whose answer no client has yet.

    Attributes:
        session: which of the agent's parts it is of.
        is_gone: whether the client that asked no longer waits.
    """

    request: Asked
    session: str
    is_gone: Callable[[], bool]
    turn: asyncio.Task[Turn]

    @property
    def has_broken(self) -> bool:
        """Whether a worker failed."""
        if not self.turn.done() or self.turn.cancelled():
            return False
        return not isinstance(self.turn.exception(), RefusedError | None)


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
    _places: list[Place] = field(default_factory=list)
    _names: dict[str, str] = field(default_factory=dict)
    _made_in: dict[str, int] = field(default_factory=dict)
    _asked: list[_Asked] = field(default_factory=list)
    _responses: dict[str, tuple[Sequence[Message], Place]] = field(default_factory=dict)
    _turns: int = 0
    _over: bool = False

    async def answer(self, request: Asked, session: str, is_gone: Callable[[], bool]) -> Turn:
        """Return the model's next turn. `session`: a request continues only what was said in its own.

        A client that lost its connection may ask again: it gets the turn that was made for it.

        Raises:
            RefusedError: the request does not fit the episode.
            LorarlError: a worker failed.
        """
        for one in self._asked:
            if one.has_broken:
                await one.turn  # a client may ask again, but the run ends
        if self._over:
            raise self.refused(RefusedError("The episode is over", code="episode_over"))
        lost = (one for one in self._asked if (one.request, one.session) == (request, session) and one.is_gone())
        if (asked := next(lost, None)) is not None:
            asked.is_gone = is_gone
        else:
            asked = _Asked(request, session, is_gone, asyncio.ensure_future(self._made(request, session)))
            self._asked.append(asked)
        try:
            turn = await asyncio.shield(asked.turn)
        finally:
            if asked.turn.done() and not asked.has_broken and not is_gone() and asked in self._asked:
                self._asked.remove(asked)
        return turn

    def refused(self, error: RefusedError) -> RefusedError:
        """Remember and return why a request was refused: an episode fails for the first one, but for its limits."""
        if error.limit is not None:
            self.met_limit = True
        elif self.refusal is None:
            self.refusal = Outcome.failed(error.cause, f"{error} ({error.status}, {error.code})")
        return error

    async def end(self) -> None:
        """Wait for the turns that are being made, and answer no more. Raises what a worker raised."""
        self._over = True
        for one in [*self._asked]:
            with contextlib.suppress(RefusedError):
                await one.turn

    def close(self) -> None:
        """Stop waiting for turns."""
        for one in self._asked:
            one.turn.cancel()

    async def _made(self, request: Asked, session: str) -> Turn:
        try:
            if isinstance(request, TokensRequest):
                return await self._continued(request, session)
            if isinstance(request, ResponseRequest):
                return await self._responded(request, session)
            turn, _ = await self._said(request, session)
            return turn
        except RefusedError as error:
            raise self.refused(error) from None
        except InputError as error:  # of the chat template, or of the format of tool calls
            raise self.refused(RefusedError(str(error))) from error

    async def _responded(self, asked: ResponseRequest, session: str) -> Turn:
        before: Sequence[Message] = ()
        named: Place | None = None
        if asked.previous is not None:
            if (found := self._responses.get(asked.previous)) is None:
                message = f"previous_response_id is {asked.previous!r}, which is no response of this episode"
                where = "previous_response_id"
                raise RefusedError(message, status=404, code="previous_response_not_found", param=where)
            before, named = found
        said = [*before, *asked.messages]
        turn, place = await self._said(replace(asked, messages=[*asked.instructions, *said]), session, named)
        self._responses[response_id(turn.number)] = [*said, turn.message], place
        return turn

    async def _said(self, asked: ChatRequest, session: str, named: Place | None = None) -> tuple[Turn, Place]:
        """Return the turn that follows messages, and the place where it ends. `named`: see `continued`."""
        self._require_turns()
        asked = replace(asked, messages=with_joined_calls(asked.messages, self._made_in))
        place = continued(self._places, asked, session, named)
        if place is None:
            row, parser, more = *self._opened(asked), []
        else:
            row, parser, more = None, place.parser, self._between(place, asked)
        why = difference(self._places, asked, session) if place is None else ""
        sequence, room = self._begun(place, row, len(more), why + _MESSAGES)
        turn, made = await self._turn(sequence, more, room, asked.max_tokens, parser=parser, pieces=asked.logprobs)
        messages = [*asked.messages, turn.message]
        end = Place(sequence, len(sequence.response), session, self._has_ended(made), messages, asked.tools, parser)
        self._places.append(end)
        return turn, end

    async def _continued(self, asked: TokensRequest, session: str) -> Turn:
        self._require_turns()
        place = continued_tokens(self._places, asked, session)
        if place is None:
            row, more = replace(self.played.first.row, prompt_ids=list(asked.token_ids)), []
        else:
            row, more = None, list(asked.token_ids[place.size :])
        sequence, room = self._begun(place, row, len(more), _TOKENS)
        turn, made = await self._turn(sequence, more, room, asked.max_tokens, stops=asked.stop_token_ids)
        self._places.append(Place(sequence, len(sequence.response), session, self._has_ended(made)))
        return turn

    @property
    def _limits(self) -> EnvironmentSpec:
        assert self.spec.environment is not None, "it makes this job's episodes"
        return self.spec.environment

    def _require_turns(self) -> None:
        if self._turns == (most := self._limits.max_turns):
            self.played.ended = "turns"
            message = f"The episode has had its {most} turns of the model, spec.environment.maxTurns"
            raise RefusedError(message, limit="turns", code="episode_over")

    def _begun(self, place: Place | None, row: EncodedRow | None, more: int, advice: str) -> tuple[PlayedSequence, int]:
        """Return the sequence that a turn is added to after so many more tokens, and the room that it has, in tokens.

        It is that of the place if it ends there, or else a further one, with all that is before the place in it. No
        token is trained twice, so the model's own turns there are masked. Without a place, the row opens one; `advice`
        then says how a request continues one.
        """
        played = self.played
        row = row or (place.sequence.row if place else played.first.row)
        before = place.length if place else 0
        is_first = not self._turns
        most = self.spec.rollout.max_prompt_tokens
        if is_first and len(row.prompt_ids) > most:
            message = f"The first request has {len(row.prompt_ids):,} tokens; spec.rollout.maxPromptTokens is {most:,}"
            raise RefusedError(message, cause="too_long", code="context_length_exceeded", param="messages")
        # A further sequence may begin with a long history, which takes room of the turns.
        left = self.spec.rollout.max_response_tokens - max(0, len(row.prompt_ids) - most) - before - more
        extends = place.sequence if place is not None and place.is_end else None
        if left <= 0:
            played.ended = "tokens"
            if extends is not None:
                extends.cut = True
            message = f"No room is left for a turn: {-left} tokens more than spec.rollout.maxResponseTokens"
            raise RefusedError(message, limit="tokens", code="context_length_exceeded", param="messages")
        if extends is not None:
            return extends, left
        if is_first:
            played.first.row = row
            return played.first, left
        if len(played.sequences) == (allowed := self._limits.most_sequences):
            message = (
                f"The request begins a further sequence, and the episode has {allowed}, as many as "
                f"spec.environment.maxSequences allows. {_ONCE if place else advice}, or raise maxSequences"
            )
            raise RefusedError(message, cause="branch", code="too_many_sequences", param="messages")
        shared = place.sequence.response[:before] if place else []
        sequence = PlayedSequence(row, len(played.sequences))
        sequence.append(shared, made=False)
        played.sequences.append(sequence)
        return sequence, left

    def _opened(self, asked: ChatRequest) -> tuple[EncodedRow, CallParser | None]:
        """Return a row with a request's messages as its prompt, and what finds calls of its tools."""
        row = self.played.first.row
        tools: Any = list(asked.tools) or None
        _require_short((asked.messages, asked.tools))
        messages: list[Message] = [{**message, **self._with_name(message)} for message in asked.messages]
        opened = self.speech.bridge.opened(replace(row, row=replace(row.row, tools=tools)), messages)
        return opened, self._parser_of(opened.row, tools) if tools else None

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

    def _between(self, place: Place, asked: ChatRequest) -> list[int]:
        """Return the tokens between the turn at a place and the next one."""
        new = asked.messages[len(place.messages or ()) :]
        _require_short(new)
        for message in new:
            if message["role"] == "tool" and (key := message.get("tool_call_id", "")) not in self._names:
                what = f"A message of a tool needs the tool_call_id of a call of the model, as it came, and has {key!r}"
                raise RefusedError(what, param="messages")
        named = [self._with_name(message) for message in new]
        return self.speech.bridge.messages(place.sequence.row.row, named, ended=place.ended)

    def _with_name(self, message: Message) -> Message:
        """Return a message which, if it answers a call of the model, has the tool's name: some templates write it."""
        if message["role"] != "tool" or (name := self._names.get(message.get("tool_call_id", ""))) is None:
            return message
        return {"role": "tool", "name": name, "content": message["content"]}

    async def _turn(
        self,
        sequence: PlayedSequence,
        more: Sequence[int],
        room: int,
        wanted: int | None,
        *,
        stops: Sequence[int] = (),
        parser: CallParser | None = None,
        pieces: bool = False,
    ) -> tuple[Turn, Completion]:
        """Have a turn made after some more tokens; return it as the agent sees it, and as it was made."""
        most = min(room, self._limits.max_turn_tokens or room)
        self._turns += 1
        number = self._turns
        sequence.busy = True
        sequence.append(more, made=False)
        with self.waiting():
            made = await self.ask(sequence, min(most, wanted or most), stops)
        sequence.busy = False
        sequence.cut = not made.finished and (wanted or most) >= most
        if self.played.ended != "turns":  # another request may have met that limit meanwhile
            self.played.ended = "tokens" if sequence.cut else "done"
        return self._described(sequence, made, number, parser, pieces=pieces), made

    def _has_ended(self, made: Completion) -> bool:
        """Whether a turn ended with a stop token, and not with a text of `rollout.stop`, or at a limit."""
        return bool(made.finished and made.tokens[-1] in self.speech.bridge.stop_ids)

    def _described(
        self, sequence: PlayedSequence, made: Completion, number: int, parser: CallParser | None, *, pieces: bool
    ) -> Turn:
        """Return a turn as the agent sees it, with the text of each token or not."""
        speech, tokens = self.speech, made.tokens.tolist()
        message: dict[str, Any] = {"role": ASSISTANT, "content": speech.decode([tokens])[0]}
        found: list[ToolCall] = []
        if parser is not None and made.finished:
            found = parser.calls(speech.decode_all([tokens[: len(tokens) - self._has_ended(made)]])[0])
        if any(call.fault for call in found):
            found = []  # a turn with a call that cannot be read is shown as it is
        calls = {f"call{len(self._names) + place:05d}": call for place, call in enumerate(found, 1)}
        self._names |= {key: call.name for key, call in calls.items()}
        self._made_in |= dict.fromkeys(calls, number)
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
            number=number,
            prompt_ids=[*sequence.row.prompt_ids, *sequence.response[: len(sequence.response) - len(tokens)]],
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
