"""Turns prompts and answers into token ids: chat templates, and what the tokenizer adds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import accumulate, batched, pairwise
from typing import Any

from lorarl_trainer.data.called import with_marks, with_texts
from lorarl_trainer.data.cells import ASSISTANT, THOUGHTS, Message, as_messages, brief, left_out, renaming
from lorarl_trainer.data.lessons import Tokens
from lorarl_trainer.data.rows import Row
from lorarl_trainer.data.template_arguments import require_read
from lorarl_trainer.data.template_hints import (
    drops_earlier_thoughts,
    fix_of_refusal,
    opens_result,
    other_or_none,
    other_template,
    unfit_template,
    written_by_hand,
)
from lorarl_trainer.data.tokenizer import default_prefix
from lorarl_trainer.data.turns import Turn, says, turn_of
from lorarl_trainer.errors import InputError

_TEXTS_PER_BATCH = 2000
_DAYS = (datetime(2001, 2, 3, 4, 5, 6), datetime(2012, 11, 13, 17, 18, 19))
"""Two times that differ in all that a template may write of them."""


class PromptEncoder:
    """Turns prompts, and prompts with answers, into token ids as the model expects them.

    With the chat template, a text is one user message, the assistant's turn is opened after the messages, and only the
    template adds special tokens. Without it, a text is encoded as it is, without EOS. BOS comes first if the tokenizer
    adds it by default (Llama's does, Qwen's does not), and never twice.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        chat_template: bool,
        stop_ids: Sequence[int],
        vocabulary_size: int | None = None,
        template_arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Encode with a tokenizer of Transformers.

        `stop_ids`: from `stop_token_ids`; an answer to learn ends with one of them. `vocabulary_size`: tokens that the
        model has an embedding for; None if that is not known.

        Raises:
            InputError: `chat_template` is true and the tokenizer has none, or the template does not read an argument.
        """
        if chat_template and not tokenizer.chat_template:
            raise InputError(
                "spec.data.chatTemplate",
                "true, but the model's tokenizer has no chat template",
                "a tokenizer with a chat template",
                "Set spec.data.chatTemplate to false to use prompts as they are, "
                f"{other_template('fits the model')}, or use the model's instruct version.",
            )
        self._tokenizer, self.uses_template, self.stop_ids = tokenizer, chat_template, frozenset(stop_ids)
        self.stops = [text for stop in stop_ids if self.ids([text := tokenizer.decode([stop])]) == [[stop]]]
        self._vocabulary_size = vocabulary_size
        self._tokens = len(tokenizer)  # builds the whole vocabulary: 10 ms and more, so not for each row
        self.vocabulary_size = vocabulary_size or self._tokens
        self._arguments = dict(template_arguments or {})
        if chat_template:
            require_read(self._arguments, str(tokenizer.chat_template))
        self._prefix = [] if chat_template else default_prefix(tokenizer)

    def encode_prompts(self, rows: Sequence[Row]) -> list[list[int]]:
        """Encode the prompt of each row.

        Raises:
            InputError: a prompt does not fit the chat template, or consists of messages and `spec.data.chatTemplate` is
                false.
        """
        if self.uses_template:
            return self.ids([self.render(row, as_messages(row.prompt), open_turn=True) for row in rows])
        return [self._with_prefix(ids) for ids in self.ids([_text(row) for row in rows])]

    def encode_example(self, row: Row) -> tuple[list[int], list[int]]:
        """Encode a row to learn from: the ids of its prompt, and those of its answer including a stop token.

        With the chat template, both together are the template applied to the whole conversation. Whatever the template
        writes after the end of the assistant's turn (often a line break) is left out, because generation stops there.
        EOS is added if the template does not write it.

        Raises:
            InputError: as for `encode_prompts`, or the templated conversation does not begin with its prompt.
        """
        if row.answer is None:
            raise ValueError(f"row {row.number} has no answer; load_rows(needs_answer=True) refuses such rows")
        return self._example(row, row.answer)

    def encode_pair(self, row: Row) -> tuple[list[int], list[int], list[int]]:
        """Encode a preference pair: the ids of its prompt, of its chosen answer and of its rejected one.

        Each answer is encoded as `encode_example` does it.
        """
        if row.answer is None or row.rejected is None:
            raise ValueError(f"row {row.number} is no pair; load_rows(pairs=True) refuses such rows")
        (prompt_ids, chosen_ids), (_, rejected_ids) = (self._example(row, text) for text in (row.answer, row.rejected))
        return prompt_ids, chosen_ids, rejected_ids

    def _example(self, row: Row, answer: str) -> tuple[list[int], list[int]]:
        if not self.uses_template:
            prompt_ids = self.encode_prompts([row])[0]
            return prompt_ids, self.closed(
                self.ids([(turn := turn_of("", answer, answer, self.stops)).answer])[0], turn
            )
        turn = self.turn(row, as_messages(row.prompt), {"role": ASSISTANT, "content": answer})
        prompt_ids, answer_ids = self.pieces(row, [turn.opened, turn.answer])
        return prompt_ids, self.closed(answer_ids, turn)

    def turn(self, row: Row, before: Sequence[Message], message: Message) -> Turn:
        """Return the text of a turn of the assistant, as the template writes it where nothing follows.

        Raises:
            InputError: the template refuses the messages, does not begin with the prompt, or drops some of the message.
        """
        opened = self.render(row, before, open_turn=True)
        whole = self.render(row, [*before, message], open_turn=False)
        if not whole.startswith(opened):
            raise self._begins_otherwise(row, before, message)
        return _whole(row, turn_of(opened, whole[len(opened) :], message["content"], self.stops), message)

    def _begins_otherwise(self, row: Row, before: Sequence[Message], message: Message) -> InputError:
        """Return the error of a conversation that does not begin with its prompt."""
        bare: list[Message] = [{key: one for key, one in each.items() if key not in THOUGHTS} for each in before]
        if bare != list(before):
            opened = self.render(row, bare, open_turn=True)
            if self.render(row, [*bare, message], open_turn=False).startswith(opened):
                return drops_earlier_thoughts(row)
        return unfit_template(row, "whose conversation of row {} does not begin with its prompt")

    def require_end(self, row: Row, turn: Turn, messages: Sequence[Message]) -> None:
        """Require that a turn with calls, the last of some messages, ends before what its tools return begins.

        Raises:
            InputError: the template opens the result within the turn, by a mark that is no stop token.
        """
        mark = self.ids([turn.answer])[0][-1:]
        (call, *_) = messages[-1]["tool_calls"]
        result = {"role": "tool", "content": "1", "name": call["function"]["name"], "tool_call_id": call.get("id", "1")}
        try:
            continued = self.render(row, [*messages, result], open_turn=False)
        except (InputError, KeyError, TypeError):
            return  # it has no form of a result
        in_turn = continued.startswith(turn.opened + turn.answer)
        if in_turn and set(mark) & set(self._tokenizer.get_added_vocab().values()):
            raise opens_result(row, str(self._tokenizer.decode(mark)))

    def pieces(self, row: Row, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of consecutive pieces of a text, so that each turn follows the tokens of its prompt.

        Raises:
            InputError: the tokenizer writes the text differently in pieces.
        """
        *befores, whole = self.ids(list(accumulate(texts)))
        if all(whole[: len(before)] == before for before in befores):
            return [whole[start:end] for start, end in pairwise([0, *map(len, befores), len(whole)])]
        # Characters on both sides of a border merged into one token, mostly white space; in a rollout they cannot.
        parts = self.ids(list(texts))
        if self._tokenizer.decode([token for part in parts for token in part]) != self._tokenizer.decode(whole):
            raise unfit_template(row, "whose conversation of row {} has other tokens than its prompt")
        return parts

    def require_embedded(self, row: Row, ids: Iterable[int], field: str) -> None:
        """Check that the model has an embedding for every token of a row.

        A tokenizer with tokens that were added later may be larger than the model, and ids in the data are of any
        tokenizer. On a GPU, such a token would end the process with an error that names nothing.

        Raises:
            InputError: naming the row, and `field`, its data source.
        """
        size, given = self._vocabulary_size, isinstance(row.lesson, Tokens)
        if size is None or (self._tokens <= size and not given):
            return
        foreign = next((token for token in ids if token >= size), None)
        if foreign is not None and given:
            raise InputError(
                f"{field}.tokensField",
                f"token {foreign} in row {row.number}",
                f"ids below {size:,}, the tokens that the model has",
                "Make the ids with the model's own tokenizer.",
            )
        if foreign is not None:
            raise InputError(
                "spec.model.uri",
                f"a tokenizer of {self._tokens:,} tokens for a model of {size:,}, and row {row.number} "
                f"of {field} has token {foreign} ({self._tokenizer.convert_ids_to_tokens(foreign)!r})",
                "an embedding for each token of the data",
                "Use the model's own tokenizer, or resize the model's embeddings (resize_token_embeddings).",
            )

    def require_template(self, row: Row) -> None:
        """Require the chat template, which a conversation needs.

        Raises:
            InputError: `spec.data.chatTemplate` is false.
        """
        if not self.uses_template:
            raise InputError(
                "spec.data.chatTemplate",
                f"false, but row {row.number} is a conversation",
                "true, for conversations",
                "Set spec.data.chatTemplate to true, or give token ids with a loss mask (tokensField, lossMaskField).",
            )

    @property
    def marks_turns(self) -> bool:
        """Whether the template has {% generation %}."""
        return re.search(r"\{%-?\s*generation\s*-?%\}", str(self._tokenizer.chat_template)) is not None

    def marked(self, row: Row, messages: Sequence[Message]) -> tuple[list[int], list[int]]:
        """Return the ids of a conversation, and 1 for each that the template marks as the assistant's."""
        self.render(row, messages, open_turn=False)  # names what is wrong
        found = self._apply(row, messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
        return list(found["input_ids"]), list(found["assistant_masks"])

    def marked_turn(self, row: Row, ids: Sequence[int], start: int, message: Message) -> Turn:
        """Return the text of a turn that ends some ids, and begins at one.

        Raises:
            InputError: the template drops some of the message.
        """
        decode = self._tokenizer.decode
        turn = Turn(decode(ids[:start]), decode(ids[start:]), ended=True)
        as_tokens = {
            key: decode(self.ids([text])[0]) if isinstance(text, str) else text for key, text in message.items()
        }
        return _whole(row, turn, as_tokens)

    def require_tools(self, field: str) -> None:
        """Require a chat template that reads tools. `field` is the path of the tools' column, for errors.

        Raises:
            InputError: it does not, or there is none.
        """
        if not self.uses_template:
            raise InputError(
                field,
                "a column of tools, with spec.data.chatTemplate: false",
                "true, for tools",
                f"Set spec.data.chatTemplate to true, or write the tools into the prompts and remove {field}.",
            )
        if not re.search(r"\btools\b", str(self._tokenizer.chat_template)):
            raise InputError(
                field,
                "a column of tools, which the model's chat template does not write",
                "a template that reads tools",
                written_by_hand("tools into the system messages", field),
            )

    def is_dated(self, row: Row) -> bool:
        """Return whether the chat template writes today's date for a row that it was applied to before."""
        if not self.uses_template or isinstance(row.lesson, Tokens):
            return False
        if "strftime_now" not in str(self._tokenizer.chat_template):
            return False
        opened = {"add_generation_prompt": row.lesson is None}
        first, second = (
            self._apply(row, as_messages(row.prompt), tokenize=False, strftime_now=day.strftime, **opened)
            for day in _DAYS
        )
        return bool(first != second)

    def date_argument(self) -> str | None:
        """Return the name of the argument with which the chat template takes a date in place of today's."""
        default = re.search(
            r"\b(\w+) is (?:not )?defined.*?\bset \1 = strftime_now\b", str(self._tokenizer.chat_template), re.DOTALL
        )
        return default and default[1]

    def closed(self, answer_ids: list[int], turn: Turn) -> list[int]:
        """Return a turn's ids with the stop token at its end, which is added if it is missing."""
        eos = self._tokenizer.eos_token_id
        return answer_ids if turn.ended else [*answer_ids, min(self.stop_ids) if eos is None else eos]

    def render(self, row: Row, messages: Sequence[Message], *, open_turn: bool) -> str:
        """Return messages in the chat template, with the assistant's turn opened after them or not.

        Raises:
            InputError: the template refuses them, or leaves one out.
        """
        try:
            text: str = self._apply(row, messages, tokenize=False, add_generation_prompt=open_turn)
        except Exception as error:  # a template is the model author's program and may raise anything
            if self._arguments and self._renders_without_arguments(messages, open_turn):
                raise InputError(
                    "spec.data.chatTemplateArguments",
                    f"{json.dumps(self._arguments)}, with which the template fails ({type(error).__name__}: {error})",
                    "arguments that the model's template takes",
                    "Correct their values; the template in the model's folder shows how it uses them.",
                ) from error
            raise InputError(
                "spec.data.chatTemplate",
                f"a template that refuses row {row.number} ({type(error).__name__}: {error})",
                "messages that fit the model's template",
                fix_of_refusal(error, row, messages),
            ) from error
        if not text:
            raise InputError(
                "spec.data.chatTemplate",
                f"a template that writes nothing for row {row.number}",
                "a template that writes the messages",
                f"Fix the template, or {other_or_none('writes them', row)}.",
            )
        if missing := left_out(messages, text):
            raise InputError(
                "spec.data.chatTemplate",
                f"a template that leaves out the message with the role {missing['role']} of row {row.number}",
                "a template that writes all messages",
                renaming(messages) or f"Give it the role system or user, or {other_template('writes it')}.",
            )
        self._require_calls(row, messages)
        return text

    def _apply(self, row: Row, messages: Sequence[Message], **options: Any) -> Any:
        """Apply the chat template to messages. It may fail with any error."""
        apply = partial(self._tokenizer.apply_chat_template, tools=row.tools, **options | self._arguments)
        try:
            return apply(list(messages))
        except TypeError:
            if (texts := with_texts(messages)) == list(messages):
                raise
            return apply(texts)  # DeepSeek's templates add arguments to texts

    def _require_calls(self, row: Row, messages: Sequence[Message]) -> None:
        """Require that the template writes each call of a tool: many know none, and some only the first of a message.

        Raises:
            InputError: it leaves one out.
        """
        marked, marks = with_marks(messages)
        if not marks:
            return
        try:
            written = self._apply(row, marked, tokenize=False)
        except Exception:  # noqa: BLE001  it took them without marks: it knows tools by their names, so it writes them
            return
        if (lost := next((mark for mark in marks if mark.text not in written), None)) is None:
            return
        _, tool, place = lost
        raise InputError(
            "spec.data.chatTemplate",
            f"a template that leaves out {'a later' if place else 'the'} call of {tool} in row {row.number}",
            "a template that writes all calls of tools",
            f"Give each call a message of the assistant, with its result after it, or {other_template('writes it')}."
            if place
            else written_by_hand("calls into content", "tool_calls"),
        )

    def _renders_without_arguments(self, messages: Sequence[Message], open_turn: bool) -> bool:
        try:
            self._tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=open_turn)
        except Exception:  # noqa: BLE001 - see `_render`
            return False
        return True

    def ids(self, texts: list[str]) -> list[list[int]]:
        """Return the token ids of texts, as they are."""
        # The tokenizer need not warn of texts that are too long: the length filter handles them. Batches limit memory,
        # because the tokenizer makes offsets and masks for every text.
        ids: list[list[int]] = []
        for batch in batched(texts, _TEXTS_PER_BATCH):
            ids += self._tokenizer(list(batch), add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    def _with_prefix(self, ids: list[int]) -> list[int]:
        return ids if ids[: len(self._prefix)] == self._prefix else [*self._prefix, *ids]


def _whole(row: Row, turn: Turn, message: Message) -> Turn:
    """Return a turn unless the template drops some of its message."""
    for key in ("content", *THOUGHTS):
        if isinstance(given := message.get(key), str) and not says(turn, given):
            raise unfit_template(row, f"that drops some of the {key} of the assistant in row {{}}, {brief(given)}")
    return turn


def _text(row: Row) -> str:
    if isinstance(row.prompt, str):
        return row.prompt
    raise InputError(
        "spec.data.chatTemplate",
        f"false, but the prompt of row {row.number} is a list of chat messages",
        "prompts that are texts",
        "Set spec.data.chatTemplate to true, or name a column of texts in promptField.",
    )
