"""`lorarl chat`: base model and adapter answer side by side."""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, TextIO

from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.data.rows import Row
from lorarl_trainer.errors import InputError
from lorarl_trainer.launch import inputs
from lorarl_trainer.samples.sampling import Sampling
from lorarl_trainer.storage.secrets import secrets_on_demand
from lorarl_trainer.trained_adapters.episode import play_row
from lorarl_trainer.trained_adapters.model import AdaptedModel, Decoding, load_adapted
from lorarl_trainer.trained_adapters.source import READS as OF_ADAPTERS
from lorarl_trainer.trained_adapters.source import Source

READS = (
    *OF_ADAPTERS,
    *(f"spec.data.{part}" for part in ("train", "mixture", "chatTemplateArguments")),
    *(f"spec.{part}" for part in ("environment", "reward", "rewards", "trainer.seed")),
    *(f"spec.rollout.{part}" for part in ("maxPromptTokens", "maxResponseTokens", "stop")),
)
"""What questions read of a job: those of its rows too, and what plays their episodes."""
_RESET, _QUIT = "/reset", ("/quit", "/exit")
_COMMAND = re.compile(r"/[^\s/]*")
"""A single word: a prompt may begin with a path, or with a switch such as Qwen3's /no_think."""
_GAP = "   "
_NARROW = 60


class Answerer:
    """Base model and adapter, which answer the same questions."""

    def __init__(self, source: Source, *, max_tokens: int, temperature: float, seed: int) -> None:
        """Load both.

        Raises:
            InputError: base model or adapter cannot be loaded.
        """
        print(f"loading {source.base} and {source.label}", file=sys.stderr, flush=True)
        self._source, self._model = source, load_adapted(source, seed=seed)
        self._decoding = Decoding(1, max_tokens, Sampling(temperature) if temperature else None)
        self._template = template_arguments(source.job, self._model.tokenizer)

    def chat(self, talk: TextIO, screen: TextIO) -> None:
        """Answer each line of `talk` on `screen` until it ends. Each side remembers its own conversation."""
        on_terminal = talk.isatty() and screen.isatty()
        if on_terminal:
            print(_commands(self._template), file=screen)
        told: list[list[dict[str, str]]] = [[], []]
        while (line := _next(talk, screen if on_terminal else None)) is not None:
            if line in _QUIT:
                return
            if line == _RESET:
                told = [[], []]
            elif _COMMAND.fullmatch(line):
                print(f"{line} is no command. {_commands(self._template)}", file=screen, flush=True)
            elif line:
                for conversation in told:
                    conversation.append({"role": "user", "content": line})
                answers = self._show([self._ids(conversation) for conversation in told], screen)
                for conversation, answer in zip(told, answers, strict=True):
                    conversation.append({"role": "assistant", "content": answer})

    def ask(self, prompt: str, screen: TextIO) -> None:
        """Answer one prompt, which may have several lines."""
        ids = self._ids([{"role": "user", "content": prompt}])
        self._show([ids, ids], screen)

    def ask_row(self, number: int, screen: TextIO) -> None:
        """Answer a row of the job's training data, with the tokens that the training has for it.

        With an environment, both play the row's episode.

        Raises:
            LorarlError: the job is not known, its rows cannot be read, there is no such row, or its episode fails.
        """
        job, path, row = _row_of(self._source.job, number)
        if job.spec.environment is None:
            ids = inputs.prompt_encoder(job.spec, self._model.vocabulary).encode_prompts([row])[0]
            self._show([ids, ids], screen)
            return
        played = play_row(self._source, self._model, row, path, self._decoding.sampling)
        print("\n".join(played.opening_lines()), file=screen)
        self._print(played.texts, screen)
        print(played.last_line, file=screen, flush=True)

    def _ids(self, conversation: list[dict[str, str]]) -> list[int]:
        return _prompt(self._model.tokenizer, conversation, self._template)

    def _show(self, prompts: Sequence[list[int]], screen: TextIO) -> list[str]:
        """Answer on `screen`, the base model its prompt and the adapter its own, and return both answers."""
        answers = [
            _answer(self._model, side, ids, self._decoding)
            for side, ids in zip(("base", "adapter"), prompts, strict=True)
        ]
        self._print(answers, screen)
        return answers

    @staticmethod
    def _print(answers: Sequence[str], screen: TextIO) -> None:
        width = shutil.get_terminal_size().columns if screen.isatty() else 0
        print("\n".join(side_by_side(answers[0], answers[1], width)), file=screen, flush=True)


def _row_of(job: LoRARLJob | None, number: int) -> tuple[LoRARLJob, str, Row]:
    """Return the job, its first source and the row of it with a number, counted from 1."""
    field = "--row"
    if job is None:
        raise InputError(field, f"{number} of an unknown job", "the job that has the row", "Name it with --job.")
    path, source = next(iter(job.spec.data.sources.items()))
    rows = inputs.read_source(job.spec, source, field=path, secrets=secrets_on_demand(job.spec))
    row = next((row for row in rows if row.number == number), None)
    if row is None:
        expected = f"the number of a row of {source.origin}"
        raise InputError(field, str(number), expected, f"Name one from {rows[0].number} to {rows[-1].number}.")
    if row.lesson is not None:
        got = f"{number} of {path}, which is a conversation to learn"
        raise InputError(field, got, "a row with a prompt", "Write the prompt into a file for --prompt-file.")
    return job, path, row


def _commands(template: Mapping[str, Any] | None) -> str:
    memory = f"{_RESET} forgets the conversation, " if template is not None else "Each line is a new prompt; "
    return f"{memory}{_QUIT[0]} ends."


def _next(talk: TextIO, screen: TextIO | None) -> str | None:
    if screen is not None:
        print("\n> ", end="", file=screen, flush=True)
    line = talk.readline()
    return line.strip() if line else None


def template_arguments(job: LoRARLJob | None, tokenizer: Any) -> dict[str, Any] | None:
    """Return the arguments of the chat template, those of the training; None where a prompt has no template."""
    if not tokenizer.chat_template or (job and not job.spec.data.chat_template):
        return None
    return dict(job.spec.data.chat_template_arguments or {}) if job else {}


def _prompt(tokenizer: Any, conversation: list[dict[str, str]], template: Mapping[str, Any] | None) -> list[int]:
    """Return the tokens of a conversation; without a template, those of its last line."""
    if template is None:
        encoded = tokenizer(conversation[-1]["content"])
    else:
        text = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True, **template)
        encoded = tokenizer(text, add_special_tokens=False)
    ids: list[int] = encoded["input_ids"]
    return ids


def _answer(model: AdaptedModel, side: str, prompt: list[int], decoding: Decoding) -> str:
    with model.plain() if side == "base" else contextlib.nullcontext():
        return model.generate([prompt], decoding)[0][0].text


def side_by_side(base: str, adapter: str, width: int) -> Iterator[str]:
    """Yield the lines of both answers: in two columns of a terminal that is wide enough, otherwise in turn."""
    if width < _NARROW:
        for name, answer in (("base", base), ("adapter", adapter)):
            first, *rest = answer.splitlines() or [""]
            yield f"{name + ':':<9}{first}"
            yield from (f"{'':<9}{line}" for line in rest)
        return
    column = (width - len(_GAP)) // 2
    left, right = (
        [part for line in text.splitlines() for part in textwrap.wrap(line, column) or [""]] for text in (base, adapter)
    )
    yield f"{'base':<{column}}{_GAP}adapter".rstrip()
    yield f"{'-' * column}{_GAP}{'-' * column}"
    for one, other in zip_longest(left, right, fillvalue=""):
        yield f"{one:<{column}}{_GAP}{other}".rstrip()
