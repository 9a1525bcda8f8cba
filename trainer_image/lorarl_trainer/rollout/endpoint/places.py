"""The places of an episode from which a request may continue it: after each turn of the model. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from lorarl_trainer.data.cells import ASSISTANT, Message
from lorarl_trainer.data.tool_calls import CallParser, Tools
from lorarl_trainer.rollout.endpoint.requests import ChatRequest, TokensRequest
from lorarl_trainer.rollout.played import PlayedSequence

_BLOCK = 1024


@dataclass(frozen=True)
class Place:
    """Where a turn of the model ended.

    Attributes:
        sequence: the one that has the turn.
        length: tokens after its prompt up to here.
        session: of the requests that led here.
        ended: whether the turn ended with a stop token.
        messages: all up to here, the model's as they were sent; None if the turn was made from tokens.
        tools: that the model was shown.
        parser: finds their calls; None without tools.
    """

    sequence: PlayedSequence
    length: int
    session: str
    ended: bool
    messages: Sequence[Message] | None = None
    tools: Tools = ()
    parser: CallParser | None = None

    @property
    def size(self) -> int:
        """The number of tokens up to here."""
        return len(self.sequence.row.prompt_ids) + self.length

    @property
    def is_end(self) -> bool:
        """Whether its sequence ends here, so that a turn can be added to it."""
        return not self.sequence.busy and self.length == len(self.sequence.response)

    def alike(self, messages: Sequence[Message]) -> int:
        """Return how many of the first messages are those that led here."""
        pairs = enumerate(zip(messages, self.messages or (), strict=False))
        known = len(self.messages or ())
        return next((n for n, (given, own) in pairs if not is_same(given, own)), min(known, len(messages)))

    def fits(self, asked: ChatRequest, session: str) -> bool:
        """Return whether a request continues this turn: it has all messages up to here, and no later turn."""
        if self.messages is None or self.session != session:
            return False
        new = asked.messages[len(self.messages) :]
        return (  # the cheap conditions come first: all episodes wait
            len(new) > 0
            and all(message["role"] != ASSISTANT for message in new)
            and list(self.tools) == list(asked.tools)
            and is_same(asked.messages[len(self.messages) - 1], self.messages[-1])
            and self.alike(asked.messages) == len(self.messages)
        )


def continued(places: Sequence[Place], asked: ChatRequest, session: str, named: Place | None = None) -> Place | None:
    """Return the place that a request continues; None if it continues none.

    Among equals it is the one that the request names, or else that whose calls have the ids of the request's, that
    which no turn follows yet, and the first.
    """
    if named is not None and named.fits(asked, session):
        return named
    found = [place for place in places if place.fits(asked, session)]
    given = _ids(asked.messages)
    return max(found, key=lambda place: (len(given & _ids(place.messages or ())), place.is_end), default=None)


def continued_tokens(places: Sequence[Place], asked: TokensRequest, session: str) -> Place | None:
    """Return the place with the most tokens that a request continues; None if it continues none."""
    given = list(asked.token_ids)
    own = [place for place in places if place.session == session]
    sequences = {place.sequence.number: place.sequence for place in own}
    # Each sequence is compared once, whatever the number of its places: meanwhile all episodes wait.
    alike = {number: _alike(given, [*one.row.prompt_ids, *one.response]) for number, one in sequences.items()}
    found = [place for place in own if place.size <= alike[place.sequence.number]]
    return max(found, key=lambda place: (place.size, place.is_end), default=None)


def difference(places: Sequence[Place], asked: ChatRequest, session: str) -> str:
    """Return a sentence that says why a request continues none of these places."""
    if any(place.fits(replace(asked, tools=place.tools), session) for place in places):
        return "Its tools are others. "
    alike = [(place.alike(asked.messages), place) for place in places if place.session == session]
    near = max((count for count, _ in alike), default=0)
    if not near:
        return ""
    if near == len(asked.messages):
        return "Its messages end before a turn of the model. "
    has_tools = any(count == near and list(place.tools) == list(asked.tools) for count, place in alike)
    return f"{'Its' if has_tools else 'Its tools are others, and its'} messages are others from messages[{near}] on. "


def with_joined_calls(messages: Sequence[Message], turns: Mapping[str, int]) -> list[Message]:
    """Return messages in which the calls of one turn are one message, in their order, as the model made them.

    Some clients send each call by itself, with its answer behind it, or in the order in which the answers came. Some
    send a call again beside `previous_response_id`, which brings it already: it is made once.

    Args:
        messages: of an agent.
        turns: the turn that made each call, by the call's id, in their order.
    """
    order = {key: number for number, key in enumerate(turns)}
    joined: list[Message] = []
    last: tuple[int, int] | None = None  # the newest message with calls, as its place and its turn
    for message in messages:
        calls = message.get("tool_calls") or []
        made = {turns.get(str(call.get("id"))) for call in calls}
        turn = made.pop() if len(made) == 1 else None
        if turn is None:
            joined.append(message)
            last = last if message["role"] == "tool" else None
            continue
        at = last[0] if last is not None and turn == last[1] else len(joined)
        first = joined[at] if at < len(joined) else {**message, "tool_calls": []}
        once = {call["id"]: call for call in [*first["tool_calls"], *calls]}
        joined[at : at + 1] = [{**first, "tool_calls": sorted(once.values(), key=lambda call: order[call["id"]])}]
        last = at, turn
    return joined


def _alike(given: list[int], own: list[int]) -> int:
    """Return how many of the first tokens are the same. Blocks are compared first, which is fast."""
    starts = range(0, min(len(given), len(own)), _BLOCK)
    start = next((n for n in starts if given[n : n + _BLOCK] != own[n : n + _BLOCK]), min(len(given), len(own)))
    pairs = zip(given[start : start + _BLOCK], own[start : start + _BLOCK], strict=False)
    return start + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _ids(messages: Sequence[Message]) -> set[str]:
    """Return the ids of all calls of tools, and of those that are answered. Clients may leave some out."""
    called = {call.get("id") for message in messages for call in message.get("tool_calls", ())}
    return {one for one in (*called, *(message.get("tool_call_id") for message in messages)) if isinstance(one, str)}


def is_same(given: Message, known: Message) -> bool:
    """Whether a message is the known one. Clients trim what the model says, and leave out keys."""
    if given["role"] != known["role"]:
        return False
    if known["role"] != ASSISTANT:
        return bool(given == known)
    said = [call["function"] for call in known.get("tool_calls", ())]
    if said or given.get("tool_calls"):
        return said == [call["function"] for call in given.get("tool_calls", ())]
    return bool(given["content"].strip() == known["content"].strip())
