"""The tokens by which an adapter is checked, and what transformers and PEFT say of them."""

from __future__ import annotations

import gc
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lorarl_trainer.loading import QUESTION
from lorarl_trainer.progress.samples import SAMPLES
from lorarl_trainer.samples.arrays import Floats
from lorarl_trainer.trained_adapters.chat import template_arguments
from lorarl_trainer.trained_adapters.model import AdaptedModel, load_adapted
from lorarl_trainer.trained_adapters.serving.verdict import Measured
from lorarl_trainer.trained_adapters.source import Source

_LINES, _LONGEST, _LAST = 4, 256, 16
"""How many of a run's samples are given to the server, how many tokens of each, and how many of those are asked."""
_TAIL_BYTES = 1 << 20


@dataclass(frozen=True)
class Recorded:
    """Token ids of each text, and the log-probabilities of so many last tokens of each."""

    texts: Sequence[Sequence[int]]
    last: int
    expected: Measured


def recorded_samples(run: Path | None) -> list[str]:
    """Return the last prompts with their answers of a run's samples.jsonl: what the adapter learned shows there."""
    file = run / SAMPLES if run else None
    if file is None or not file.is_file():
        return []
    with file.open("rb") as lines:
        lines.seek(max(0, file.stat().st_size - _TAIL_BYTES))
        whole = lines.read().splitlines()
    found = []
    for line in whole[::-1]:
        try:
            sample = json.loads(line)
            found.append(f"{sample['model_prompt']}{sample['completion']}")
        except (ValueError, KeyError, TypeError):
            continue  # the first line is cut off, and the last one may be under way
        if len(found) == _LINES:
            break
    return found


def measure(source: Source, samples: Sequence[str]) -> Recorded:
    """Load base and adapter with transformers and PEFT, on the CPU: the server has the GPU.

    Raises:
        InputError: they cannot be loaded.
    """
    model = load_adapted(source, device="cpu")
    tokenizer = model.tokenizer
    texts = [ids for ids in (_encoded(tokenizer, text) for text in samples) if len(ids) > 1]
    texts = texts or [_question(source, tokenizer)]
    last = min(_LAST, *(len(ids) - 1 for ids in texts))
    expected = _expected(model, texts, last)
    del model
    gc.collect()  # a model has cycles, and its memory would stay
    return Recorded(texts, last, expected)


def _expected(model: AdaptedModel, texts: Sequence[Sequence[int]], last: int) -> Measured:
    def scored() -> Floats:
        return np.concatenate([model.log_probabilities(ids)[-last:] for ids in texts])

    with model.plain():
        base_T = scored()
    return Measured(base_T, scored())


def _encoded(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids[-_LONGEST:]


def _question(source: Source, tokenizer: Any) -> list[int]:
    """Return the tokens of a question, as the model sees it."""
    arguments = template_arguments(source.job, tokenizer)
    if arguments is None:
        return _encoded(tokenizer, QUESTION)
    chat = [{"role": "user", "content": QUESTION}]
    return _encoded(
        tokenizer, tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, **arguments)
    )
