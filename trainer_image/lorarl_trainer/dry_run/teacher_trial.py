"""What a dry run shows of a teacher behind a server: whether it answers, and reads tokens as the base model does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.errors import RewardServerError
from lorarl_trainer.rewards.scores import ToScore, collect, first_failures
from lorarl_trainer.rewards.server.teacher import Teacher

HASTE = (
    "A dry run asks once, and waits some seconds. A server that has just started may take longer for its first answer: "
    "then try again. A run waits up to timeoutSeconds, and repeats its requests."
)


async def try_teacher(teacher: Teacher, rows: Sequence[EncodedRow]) -> list[str]:
    """Ask for the last token of some prompts; return lines about the answers. The teacher knows the tokenizer.

    Raises:
        InputError: no answer can be used. A run would stop at its first step.
        RewardServerError: the same, and the server could not be asked.
    """
    samples = [
        ToScore(row.row.prompt, "", None, {}, prompt_ids=row.prompt_ids[:-1], completion_ids=row.prompt_ids[-1:])
        for row in rows
        if len(row.prompt_ids) > 1
    ]
    outcomes = await teacher.score(samples)
    try:
        scores = collect(outcomes, teacher.field)
    except RewardServerError as error:
        raise RewardServerError(f"{error} {HASTE}") from None
    return [
        f"teacher  the server scored the last token of {np.isfinite(scores.rewards).sum()} of {len(samples)} prompts",
        *(f"warning: {failure.first_message}" for _, failure in first_failures(outcomes).values()),
    ]
