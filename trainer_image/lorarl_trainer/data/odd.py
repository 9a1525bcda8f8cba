"""Prompts and answers that can be trained on, but are probably not what the user meant. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from lorarl_trainer.data.cells import ROLES, brief, meant_role
from lorarl_trainer.data.columns import cell
from lorarl_trainer.data.encoder import PromptEncoder
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.data.rows import Row

_MOST_DATED = 100
"""Rows of a source that are tried for a date: a template writes it for all, or for those without a system message."""


def odd_prompts(rows: Sequence[Row], field: str) -> Iterator[str]:
    """Yield a warning for each kind of odd prompt, with the first row of that kind."""
    chats = [(row.number, row.prompt) for row in rows if not isinstance(row.prompt, str)]
    roles = [(number, str(message["role"])) for number, messages in chats for message in messages]
    for number, role in roles:
        if role not in ROLES:
            yield f"{field}: row {number} has a message with the role {role!r}. Did you mean {meant_role(role)}?"
            break
    if ended := [number for number, messages in chats if messages[-1]["role"] == "assistant"]:
        yield (
            f"{field}: {len(ended)} prompts end with a message of the assistant, first that of row {ended[0]}. The "
            "model sees that answer and gives another. Move it to the column of answerField, or remove it."
        )
    texts = [row for row in rows if isinstance(row.prompt, str) and row.prompt.lstrip().startswith('[{"role"')]
    if texts:
        yield (
            f"{field}: {len(texts)} prompts are texts that look like chat messages, first that of row "
            f"{texts[0].number}. Store them as a list, not as JSON in a text."
        )


def odd_answers(rows: Sequence[Row], field: str, column: str, *, needed: bool) -> Iterator[str]:
    """Yield a warning if the answers are in a column of almost the name of `column`, are no texts, or are empty.

    `needed`: whether they are learned, or compared with. Functions may have another use for empty ones.
    """
    if all(row.answer is None for row in rows) and all(cell(row.raw, column) is None for row in rows):
        alike = (key for key in rows[0].raw if key.strip().casefold() == column.strip().casefold())
        if name := next(alike, None):
            yield (
                f"{field}.answerField: no row has the column {column}, so there are no answers, but row "
                f"{rows[0].number} has {name!r}. Set answerField to it, or rename it."
            )
    if other := [row for row in rows if row.answer is None and cell(row.raw, column) is not None]:
        value = cell(other[0].raw, column)
        yield (
            f"{field}.answerField: {len(other):,} of {len(rows):,} answers are no text or number, first that of row "
            f"{other[0].number}, {brief(value)} ({type(value).__name__}). A reward gets None as their answer. "
            f"Write them as text, JSON as a string, or let the reward read row[{column!r}]."
        )
    empty = [row.number for row in rows if row.answer is not None and not row.answer.strip()]
    if needed and empty:
        yield (
            f"{field}.answerField: {len(empty):,} of {len(rows):,} answers are empty, first that of row {empty[0]}. "
            "Fill them in, or remove those rows."
        )


def shared_prompts(train: Sequence[EncodedRow], held_out: Sequence[EncodedRow], field: str) -> Iterator[str]:
    """Yield a warning if held-out rows have prompts that are trained on."""
    trained = {tuple(row.prompt_ids) for row in train}
    if shared := [row.row.number for row in held_out if tuple(row.prompt_ids) in trained]:
        yield (
            f"{field}: {len(shared):,} of {len(held_out):,} prompts are also trained on, first that of row "
            f"{shared[0]}. Scores on rows that are trained on say little about others."
        )


def few_rows(rows: Sequence[EncodedRow], prompts_per_step: int) -> Iterator[str]:
    """Yield a warning if a step takes more rows than there are, so that some come twice in it."""
    if len(rows) < prompts_per_step:
        yield (
            f"spec.rollout.promptsPerStep: {prompts_per_step:,}, but the data has only {len(rows):,} "
            f"row{'s' * (len(rows) > 1)}, so each step takes some more than once. Add rows, or lower it: a model "
            "learns so few by heart."
        )


def same_prompts(rows: Sequence[EncodedRow], field: str) -> Iterator[str]:
    """Yield a warning if different prompts have the same tokens: the chat template ignores them."""
    differ = any(row.row.prompt != rows[0].row.prompt for row in rows)
    if differ and len({tuple(row.prompt_ids) for row in rows}) == 1:
        yield (
            f"{field}: all {len(rows):,} prompts have the same tokens, though the rows differ. The model's chat "
            "template does not read the messages."
        )


def dated_prompts(sources: Mapping[str, Sequence[Row]], encoder: PromptEncoder) -> Iterator[str]:
    """Yield a warning if the chat template writes today's date, so that the same run has other prompts tomorrow.

    `sources` are rows that were encoded, by the paths of their sources in the manifest.
    """
    tried = ((field, row) for field, rows in sources.items() for row in islice(rows, _MOST_DATED))
    if first := next(((field, row) for field, row in tried if encoder.is_dated(row)), None):
        argument = encoder.date_argument()
        yield (
            f"spec.data.chatTemplate: the model's template writes today's date (strftime_now), first in row "
            f"{first[1].number} of {first[0]}. A run that resumes on another day has other prompts, in training and in "
            "evaluations. "
        ) + (
            f'Set spec.data.chatTemplateArguments to {{{argument}: "26 Jul 2024"}}, or another date.'
            if argument
            else "Write a date in place of strftime_now in a copy of the template, and name that "
            "(spec.data.chatTemplateFile: file:PATH)."
        )
