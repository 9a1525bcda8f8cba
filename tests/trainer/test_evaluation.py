"""Evaluations of few held-out rows, one of them, and of rows that cannot be scored."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from lorarl_trainer.data.stream import RowStream
from lorarl_trainer.errors import InputError
from lorarl_trainer.progress import EvalDone, Progress, Sampled
from lorarl_trainer.rewards.scores import Outcome, Scorer, ToScore
from lorarl_trainer.rollout.lockstep import Lockstep
from lorarl_trainer.sft import Answers
from support.in_process import Colocated, OneWorker
from support.loop_runs import Collected, CountsEvenTokens, rows, spelled


class TimesOut(CountsEvenTokens):
    async def score(self, samples: Sequence[ToScore]) -> list[Outcome]:
        return [Outcome.failed("timeout", "10 s") for _ in samples]


def evaluate(worker: Colocated, count: int, scorer: Scorer) -> tuple[EvalDone | None, Collected]:
    told = Collected()
    learning = RowStream(rows(), 0)
    rollouts = Lockstep(
        worker.spec, learning, rows(count), 4, OneWorker(worker.worker), scorer, spelled, Progress([told], []), spelled
    )
    worker.sync()
    return asyncio.run(rollouts.evaluate(5, worker.version)), told


def test_one_held_out_row_is_an_evaluation(colocated) -> None:
    done, told = evaluate(colocated(), 1, CountsEvenTokens())
    assert done is not None and done.rows == 1
    assert done.score is not None and 0.0 <= done.score <= 1.0
    assert [len(event.samples) for event in told.events if isinstance(event, Sampled)] == [1]


@pytest.mark.parametrize("count", [1, 3])
def test_rows_of_which_none_can_be_scored_are_a_clear_error(colocated, count: int) -> None:
    """The run ends with what it has made, and its next start makes up for the evaluation."""
    told = rf"spec\.reward: got no score for any of {count} completions \({count} x timeout: 10 s\), expected"
    with pytest.raises(InputError, match=told):
        evaluate(colocated(), count, TimesOut())


def test_one_held_out_row_is_an_evaluation_of_sft(colocated) -> None:
    worker: Colocated = colocated("qwen2", algorithm="{type: sft}", reward="null")
    answers = Answers(RowStream(rows(), 0), rows(1, answer=[10, 2]), 4, OneWorker(worker.worker))
    done = asyncio.run(answers.evaluate(5, 1))
    assert done is not None and done.rows == 1
    assert done.loss is not None and done.loss > 0.0
