"""The places of an episode from which a request may continue it: after each turn of the model. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lorarl_trainer.data.cells import ASSISTANT, Message
from lorarl_trainer.data.tool_calls import CallParser, Tools
from lorarl_trainer.rollout.endpoint.requests import ChatRequest, TokensRequest
from lorarl_trainer.rollout.played import PlayedSequence


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
    def tokens(self) -> list[int]:
        """All tokens up to here."""
        return [*self.sequence.row.prompt_ids, *self.sequence.response[: self.length]]

    @property
    def is_end(self) -> bool:
        """Whether its sequence ends here, so that a turn can be added to it."""
        return not self.sequence.busy and self.length == len(self.sequence.response)

    def alike(self, messages: Sequence[Message]) -> int:
        """Return how many of the first messages are those that led here."""
        pairs = enumerate(zip(messages, self.messages or (), strict=False))
        known = len(self.messages or ())
        return next((n for n, (given, own) in pairs if not is_same(given, own)), min(known, len(messages)))


def continued(places: Sequence[Place], asked: ChatRequest, session: str) -> Place | None:
    """Return the place with the most messages that a request continues; None if it continues none."""
    found = [
        place
        for place in places
        if place.messages is not None
        and place.session == session
        and list(place.tools) == list(asked.tools)
        and place.alike(asked.messages) == len(place.messages) < len(asked.messages)
        and not any(message["role"] == ASSISTANT for message in asked.messages[len(place.messages) :])
    ]
    return max(found, key=lambda place: (len(place.messages or ()), place.is_end), default=None)


def continued_tokens(places: Sequence[Place], asked: TokensRequest, session: str) -> Place | None:
    """Return the place with the most tokens that a request continues; None if it continues none."""
    given = list(asked.token_ids)
    found = [
        (len(own), place.is_end, -number, place)
        for number, place in enumerate(places)
        if place.session == session and given[: len(own := place.tokens)] == own
    ]
    return max(found, key=lambda one: one[:3])[3] if found else None


def difference(places: Sequence[Place], asked: ChatRequest, session: str) -> str:
    """Return a sentence that says why a request continues none of these places."""
    near = max((place.alike(asked.messages) for place in places if place.session == session), default=0)
    if not near:
        return ""
    if near == len(asked.messages):
        return "Its messages end before a turn of the model. "
    changed = all(list(place.tools) != list(asked.tools) for place in places)
    return "Its tools are others. " if changed else f"Its messages are others from messages[{near}] on. "


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
