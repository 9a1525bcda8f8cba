"""`lorarl chat`: base model and adapter answer side by side."""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any, TextIO

from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.samples.sampling import Sampling
from lorarl_trainer.trained_adapters.model import AdaptedModel, Decoding, load_adapted
from lorarl_trainer.trained_adapters.source import Source

_RESET, _QUIT = "/reset", ("/quit", "/exit")
_COMMAND = re.compile(r"/[^\s/]*")
"""A single word: a prompt may begin with a path, or with a switch such as Qwen3's /no_think."""
_GAP = "   "
_NARROW = 60


def chat(source: Source, *, max_tokens: int, temperature: float, seed: int, talk: TextIO, screen: TextIO) -> None:
    """Answer each line of `talk` on `screen` until it ends. Each side remembers its own conversation.

    Raises:
        InputError: base model or adapter cannot be loaded.
    """
    on_terminal = talk.isatty() and screen.isatty()
    print(f"loading {source.base} and {source.label}", file=sys.stderr, flush=True)
    model = load_adapted(source, seed=seed)
    decoding = Decoding(1, max_tokens, Sampling(temperature) if temperature else None)
    template = template_arguments(source.job, model.tokenizer)
    if on_terminal:
        print(_commands(template), file=screen)
    told: list[list[dict[str, str]]] = [[], []]
    while (line := _next(talk, screen if on_terminal else None)) is not None:
        if line in _QUIT:
            return
        if line == _RESET:
            told = [[], []]
        elif _COMMAND.fullmatch(line):
            print(f"{line} is no command. {_commands(template)}", file=screen, flush=True)
        elif line:
            answers = []
            for side, conversation in zip(("base", "adapter"), told, strict=True):
                conversation.append({"role": "user", "content": line})
                ids = _prompt(model.tokenizer, conversation, template)
                answers.append(_answer(model, side, ids, decoding))
                conversation.append({"role": "assistant", "content": answers[-1]})
            width = shutil.get_terminal_size().columns if on_terminal else 0
            print("\n".join(side_by_side(answers[0], answers[1], width)), file=screen, flush=True)


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
