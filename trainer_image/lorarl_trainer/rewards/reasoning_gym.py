"""The reward `reasoningGym`: a task's own comparison of an answer. It runs in scoring processes, as a user's function.

Each task is a function of this module: `lorarl_trainer.rewards.reasoning_gym:chain_sum`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def __getattr__(task: str) -> Callable[..., dict[str, float]]:
    """Return the function that scores by a task. Raises AttributeError if there is no such task."""
    from reasoning_gym.factory import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
        DATASETS,
        get_score_answer_fn,
    )
    from reasoning_gym.utils import extract_answer  # type: ignore[import-not-found, import-untyped, unused-ignore]

    if task not in DATASETS:
        raise AttributeError(task)
    compare = get_score_answer_fn(task)

    def score(prompt: Any, completion: str, answer: str | None, row: dict[str, Any]) -> dict[str, float]:
        metadata = row["metadata"]
        entry = {
            "question": row.get("question", prompt),
            "answer": row.get("answer", answer),
            "metadata": json.loads(metadata) if isinstance(metadata, str) else metadata,
        }
        tagged = extract_answer(completion)
        given = completion.strip() if tagged is None else tagged
        return {"score": float(compare(given, entry)), "answer_tags": float(tagged is not None)}

    return score
