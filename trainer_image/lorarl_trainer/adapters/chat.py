"""`lorarl chat`: base model and adapter answer side by side."""

from __future__ import annotations

import contextlib
import shutil
import sys
import textwrap
from collections.abc import Iterator
from itertools import zip_longest
from typing import TextIO

from lorarl_trainer.adapters.model import AdaptedModel, Sampling, load_adapted
from lorarl_trainer.adapters.source import Source

_RESET, _QUIT = "/reset", ("/quit", "/exit")
_GAP = "   "
_NARROW = 60


def chat(source: Source, *, max_tokens: int, temperature: float, seed: int, talk: TextIO, screen: TextIO) -> None:
    """Answer each line of `talk` on `screen` until it ends. Each side remembers its own conversation.

    Raises:
        InputError: base model or adapter cannot be loaded.
    """
    on_terminal = talk.isatty() and screen.isatty()
    print(f"loading {source.base} and {source.name}", file=sys.stderr, flush=True)
    model = load_adapted(source, seed=seed)
    has_template = bool(model.tokenizer.chat_template)
    if on_terminal:
        memory = f"{_RESET} forgets the conversation, " if has_template else "Each line is a new prompt; "
        print(f"{memory}{_QUIT[0]} ends.", file=screen)
    told: list[list[dict[str, str]]] = [[], []]
    while (line := _next(talk, screen if on_terminal else None)) is not None:
        if line in _QUIT:
            return
        if line == _RESET:
            told = [[], []]
        elif line:
            answers = []
            for side, conversation in zip(("base", "adapter"), told, strict=True):
                conversation.append({"role": "user", "content": line})
                answers.append(_answer(model, side, conversation, max_tokens, temperature))
                conversation.append({"role": "assistant", "content": answers[-1]})
            width = shutil.get_terminal_size().columns if on_terminal else 0
            print("\n".join(side_by_side(answers[0], answers[1], width)), file=screen, flush=True)


def _next(talk: TextIO, screen: TextIO | None) -> str | None:
    if screen is not None:
        print("\n> ", end="", file=screen, flush=True)
    line = talk.readline()
    return line.strip() if line else None


def _answer(
    model: AdaptedModel, side: str, conversation: list[dict[str, str]], max_tokens: int, temperature: float
) -> str:
    tokenizer = model.tokenizer
    if tokenizer.chat_template:
        text = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    else:
        ids = tokenizer(conversation[-1]["content"])["input_ids"]
    with model.plain() if side == "base" else contextlib.nullcontext():
        return model.generate([ids], Sampling(1, temperature, max_tokens))[0][0].text


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
