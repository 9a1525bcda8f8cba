"""The reward `reasoningGym`: a task's own comparison of an answer. It runs in scoring processes, as a user's function.

Each task is a function of this module: `lorarl_trainer.rewards.reasoning_gym:chain_sum`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

_OF_TUPLES = frozenset(["arc_agi", "rearc"])
"""Tasks that compare tuples of their metadata, which are lists in a file."""


def __getattr__(task: str) -> Callable[..., dict[str, float]]:
    """Return the function that scores by a task. Raises AttributeError if there is no such task."""
    from reasoning_gym.factory import DATASETS  # type: ignore[import-not-found, import-untyped, unused-ignore]
    from reasoning_gym.utils import extract_answer  # type: ignore[import-not-found, import-untyped, unused-ignore]

    if task not in DATASETS:
        raise AttributeError(task)

    @lru_cache(maxsize=64)
    def comparison(config: str) -> Callable[[str, dict[str, Any]], float]:
        """Some tasks compare as the settings of their rows say, such as the number of decimals."""
        dataset, settings = DATASETS[task]
        compare: Callable[[str, dict[str, Any]], float] = dataset(config=settings(**json.loads(config))).score_answer
        return compare

    def score(prompt: Any, completion: str, answer: str | None, row: dict[str, Any]) -> dict[str, float]:
        metadata = _read(row["metadata"])
        entry = {
            "question": row.get("question", prompt),
            "answer": row.get("answer", answer),
            "metadata": _tuples(metadata) if task in _OF_TUPLES else metadata,
        }
        compare = comparison(json.dumps(_read(row.get("config")) or {}, sort_keys=True))
        tagged = extract_answer(completion)
        given = completion.strip() if tagged is None else tagged
        try:
            value, unreadable = float(compare(given, entry)), 0.0
        except Exception:  # noqa: BLE001 - how the scorers of some tasks say that an answer is none of theirs
            value, unreadable = 0.0, 1.0
        return {"score": value, "answer_tags": float(tagged is not None), "unreadable": unreadable}

    return score


def _read(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tuples(inner) for key, inner in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value
