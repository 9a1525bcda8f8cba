"""What an episode's tokens are between two turns of the model: what its chat template writes there, and nothing else.

A turn that the model has made is never encoded again: a tokenizer may write the same text otherwise, and a template may
drop a part of it. So an episode grows at its end alone. The template is asked for a conversation with a stand-in in the
place of the model's turn, and what follows the stand-in is the bridge.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lorarl_trainer.data.cells import ASSISTANT, Message, Prompt, as_messages
from lorarl_trainer.data.encoder import PromptEncoder
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.data.rows import Row
from lorarl_trainer.errors import InputError

_FIELD = "spec.environment"
_TOOL = "tool"
_SAID = "lorarl-stand-in"
_FIRST, _SECOND = "What is next?", "And after that?"
_WITH_TURNS = (
    "a template that writes a turn alike wherever it is, as those of Qwen, Llama 3, SmolLM2 and Gemma do",
    "Use a model of such a family, put a template like theirs into the model's folder, or set "
    "spec.data.chatTemplate to false and write the marks of turns yourself.",
)
_WITH_TOOLS = (
    "a template that shows tools, and writes what they return after the model's turn, as those of Qwen, GLM and "
    "Llama 3.1 do",
    "Use a model of such a family, or name a template like theirs (spec.data.chatTemplateFile: file:PATH).",
)


class Bridge:
    """Opens episodes, and bridges the model's turns.

    Attributes:
        stop_ids: tokens any of which ends a turn.
        vocabulary_size: tokens that the model has an embedding for, as far as that is known.
    """

    def __init__(self, encoder: PromptEncoder) -> None:
        """Write as this encoder does. Without a chat template, texts follow the model's turns as they are."""
        self._encoder, self.stop_ids, self.vocabulary_size = encoder, encoder.stop_ids, encoder.vocabulary_size

    def opened(self, row: EncodedRow, opening: Prompt) -> EncodedRow:
        """Return a row with what opens its episode as its prompt.

        Raises:
            InputError: the template refuses it, or it has no tokens.
        """
        with_opening = replace(row.row, prompt=opening)
        ids = self._encoder.encode_prompts([with_opening])[0]
        if not ids:
            raise InputError(_FIELD, "an opening without tokens", "a text", "Return a text from reset.")
        self._encoder.require_embedded(with_opening, ids, _FIELD)
        return EncodedRow(with_opening, ids, [])

    def tokens(self, row: Row, text: str, *, ended: bool) -> list[int]:
        """Return the tokens between a turn of the model and its next one, with a text for it between them.

        Args:
            row: what opened the episode.
            text: what the model sees next.
            ended: whether the turn ended with a stop token, so that the bridge begins after that.

        Raises:
            InputError: the template refuses the text.
        """
        return self._ids(row, as_messages(text), ended=ended)

    def messages(self, row: Row, messages: Sequence[Message], *, ended: bool) -> list[int]:
        """Return the same, with messages that are of anybody but the model. Raises InputError as `tokens` does."""
        return self._ids(row, messages, ended=ended)

    def results(self, row: Row, results: Sequence[tuple[str, str]], *, ended: bool) -> list[int]:
        """Return the same, with what answers the turn's tool calls: the name and the result of each."""
        return self._ids(row, [_result(*one) for one in results], ended=ended)

    def call(self, row: Row, name: str, arguments: Mapping[str, Any]) -> str:
        """Return how the template writes a turn that calls a tool, up to its end.

        Raises:
            InputError: the template refuses calls, or does not write them after what opens a turn.
        """
        called = {"type": "function", "id": "call00001", "function": {"name": name, "arguments": dict(arguments)}}
        opening = as_messages(row.prompt)
        opened = self._encoder.render(row, opening, open_turn=True)
        asked = {"role": ASSISTANT, "content": "", "tool_calls": [called]}
        whole = self._encoder.render(row, [*opening, asked], open_turn=False)
        begun = next((end for end in (opened, opened.rstrip()) if whole.startswith(end)), None)
        if begun is None:
            raise InputError(
                _FIELD, "a template that writes calls elsewhere", "calls in turns of the model", "Use another template."
            )
        turn = whole[len(begun) :]
        ends = [place for stop in self._encoder.stops if (place := turn.find(stop)) >= 0]
        return turn[: min(ends)] if ends else turn

    def _ids(self, row: Row, reply: Sequence[Message], *, ended: bool) -> list[int]:
        ids = self._unchecked(row, reply, ended=ended)
        self._encoder.require_embedded(row, ids, _FIELD)
        return ids

    def _unchecked(self, row: Row, reply: Sequence[Message], *, ended: bool) -> list[int]:
        if not self._encoder.uses_template:
            return self._encoder.ids(["".join(message["content"] for message in reply)])[0]
        end, rest = self._parts(self._after(row, [reply]))
        if not ended:
            return self._encoder.ids([end + rest])[0]
        # In its place: some tokenizers write what begins a text otherwise.
        before, whole = self._encoder.ids([end, end + rest])
        return whole[len(before) :] if whole[: len(before)] == before else self._encoder.ids([rest])[0]

    def require(self, row: Row) -> None:
        """Check that the template only adds to a conversation, and changes nothing of what came before.

        Raises:
            InputError: it does change it.
        """
        if not self._encoder.uses_template:
            return
        names = [tool["function"]["name"] for tool in row.tools or ()]
        first, second = ([_result(name, text) for name in names] or as_messages(text) for text in (_FIRST, _SECOND))
        try:
            fits = self._after(row, [first, second]) == self._after(row, [second]) and all(
                self._after(row, [reply]).count(reply[0]["content"]) == len(reply) for reply in (first, second)
            )
            found = f"whose conversations {'do not keep what tools return' if names else 'change'} once another turn "
            found += "follows"
            opened = self._encoder.render(row, as_messages(row.prompt), open_turn=True)
            if any(name not in opened for name in names):
                fits, found = False, "that does not show the model its tools"
        except InputError as error:
            fits, found = False, f"that refuses {'what a tool returns' if names else 'a second turn'} ({error})"
        if not fits:
            raise InputError(_FIELD, f"a model with a chat template {found}", *(_WITH_TOOLS if names else _WITH_TURNS))

    def _after(self, row: Row, replies: Sequence[Sequence[Message]]) -> str:
        """Return what the template writes after the last turn of a conversation with these replies."""
        opening, said = as_messages(row.prompt), _SAID
        while any(said in message["content"] for part in (opening, *replies) for message in part):
            said += "."
        turns = [message for reply in replies for message in ({"role": ASSISTANT, "content": said}, *reply)]
        opened = self._encoder.render(row, opening, open_turn=True)
        whole = self._encoder.render(row, [*opening, *turns], open_turn=True)
        before, *pieces = whole.split(said)
        # The model may have to write itself what a template writes before a turn, or not, as with thoughts.
        begins_alike = before.startswith(opened) or opened.startswith(before)
        if not begins_alike or len(pieces) != len(replies):
            raise InputError(
                _FIELD,
                f"a chat template that changes the beginning of row {row.number}",
                "a template that only adds to a conversation",
                "Use a model of another family, or set spec.data.chatTemplate to false.",
            )
        return pieces[-1]

    def _parts(self, after: str) -> tuple[str, str]:
        """Return the end of the model's turn, up to its stop token, and the rest. The end is empty without one."""
        stops = "|".join(map(re.escape, sorted(self._encoder.stops, key=len, reverse=True)))
        end = re.match(rf"\s*(?:{stops})", after) if stops else None
        return (after[: end.end()], after[end.end() :]) if end else ("", after)


def _result(name: str, text: str) -> Message:
    return {"role": _TOOL, "name": name, "content": text}
