"""Evaluations of few held-out rows, one of them, and of rows that cannot be scored."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from lorarl_trainer.data.stream import RowStream
from lorarl_trainer.errors import InputError
from lorarl_trainer.from_data.sft import Answers
from lorarl_trainer.progress import EvalDone, Progress, Sampled
from lorarl_trainer.rewards.scores import Outcome, Scorer, ToScore
from lorarl_trainer.rollout.evaluation import Evaluation
from lorarl_trainer.rollout.lockstep import Lockstep
from lorarl_trainer.samples.sampling import Sampling
from support.in_process import Colocated, OneWorker
from support.loop_runs import Collected, CountsEvenTokens, rows, spelled

pytestmark = pytest.mark.both_backends


class TimesOut(CountsEvenTokens):
    async def score(self, samples: Sequence[ToScore]) -> list[Outcome]:
        return [Outcome.failed("timeout", "10 s") for _ in samples]


def evaluate(
    worker: Colocated, count: int, scorer: Scorer, step: int = 5, **settings: Any
) -> tuple[EvalDone, Collected]:
    told = Collected()
    learning, held_out = RowStream(rows(), 0), {"": Evaluation("", rows(count), scorer, **settings)}
    rollouts = Lockstep(
        worker.spec, learning, held_out, 4, OneWorker(worker.worker), scorer, spelled, Progress([told], []), spelled
    )
    worker.sync()
    return asyncio.run(rollouts.evaluate("", step, worker.version)), told


def test_one_held_out_row_is_an_evaluation(colocated) -> None:
    done, told = evaluate(colocated(), 1, CountsEvenTokens())
    assert done.rows == 1 and done.metrics == {}, "one row has no interval"
    assert done.score is not None and 0.0 <= done.score <= 1.0
    assert [len(event.samples) for event in told.events if isinstance(event, Sampled)] == [1]


def test_several_samples_of_a_row_give_pass_at_k_and_the_same_again(colocated) -> None:
    worker, sampling = colocated(), Sampling(1.0)
    settings = {"sampling": sampling, "samples": 3, "pass_at": [1, 3], "pass_reward": 0.5}
    done, told = evaluate(worker, 5, CountsEvenTokens(), **settings)
    assert (done.rows, done.samples) == (5, 3)
    assert done.score is not None and done.metrics["score_low"] < done.score < done.metrics["score_high"]
    assert 0 <= done.metrics["pass_at_1"] <= done.metrics["pass_at_3"] <= 1
    assert [len(event.samples) for event in told.events if isinstance(event, Sampled)] == [15], "whole groups"
    # After any step: what differs between two evaluations is the adapter.
    for step in (5, 6, 70):
        again, _ = evaluate(worker, 5, CountsEvenTokens(), step, **settings)
        assert (again.score, again.metrics) == (done.score, done.metrics)


@pytest.mark.parametrize("count", [1, 3])
def test_rows_of_which_none_can_be_scored_are_a_clear_error(colocated, count: int) -> None:
    """The run ends with what it has made, and its next start makes up for the evaluation."""
    told = rf"spec\.reward: got no score for any of {count} completions \({count} x timeout: 10 s\), expected"
    with pytest.raises(InputError, match=told):
        evaluate(colocated(), count, TimesOut())


def test_one_held_out_row_is_an_evaluation_of_sft(colocated) -> None:
    worker: Colocated = colocated("qwen2", algorithm="{type: sft}", reward="null")
    held_out = {"one": rows(1, answer=[10, 2]), "more": rows(4, answer=[10, 2])}
    answers = Answers(RowStream(rows(), 0), held_out, 4, OneWorker(worker.worker))
    done = asyncio.run(answers.evaluate("one", 5, 1))
    assert (done.name, done.rows, done.metrics) == ("one", 1, {})
    assert done.loss is not None and done.loss > 0.0
    more = asyncio.run(answers.evaluate("more", 5, 1))
    assert more.loss is not None and more.metrics["loss_low"] < more.loss < more.metrics["loss_high"]
