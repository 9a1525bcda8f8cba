"""The penalties of length and repetition, and the reward of a format."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import LengthPenalty, RepetitionPenalty, RewardSpec
from lorarl_trainer.rewards.scorer import make_job_scorer, make_scorer, needs_answers
from lorarl_trainer.rewards.scores import Outcome, ToScore
from unit.trainer.launch.test_identity import MANIFEST


def outcome(spec: RewardSpec, completion: str = "", tokens: int = 0) -> Outcome:
    scorer = make_scorer(spec, Path())
    [found] = asyncio.run(scorer.score([ToScore("p", completion, None, {}, tokens=tokens)]))
    return found


@pytest.mark.parametrize(
    ("tokens", "penalty"), [(0, 0.0), (768, 0.0), (800, -0.125), (896, -0.5), (1024, -1.0), (2000, -1.0)]
)
def test_a_long_completion_costs_up_to_1(tokens: int, penalty: float) -> None:
    spec = RewardSpec(length=LengthPenalty(free_tokens=768, max_tokens=1024))
    assert outcome(spec, tokens=tokens) == Outcome(penalty)


@pytest.mark.parametrize(
    ("completion", "penalty"),
    [
        ("", 0.0),
        ("one two", 0.0),
        ("a b c d e f", 0.0),
        ("yes yes yes yes", -0.5),  # two runs of three words, of which one is new
        ("a b c A  b\nc", -0.25),  # abc bca cab abc
    ],
)
def test_repeated_runs_of_words_cost_their_share(completion: str, penalty: float) -> None:
    assert outcome(RewardSpec(repetition=RepetitionPenalty(words=3)), completion) == Outcome(penalty)


@given(st.text(alphabet="ab ", max_size=60), st.integers(1, 5))
def test_repetition_costs_less_than_1(completion: str, words: int) -> None:
    assert -1.0 < outcome(RewardSpec(repetition=RepetitionPenalty(words=words)), completion).value <= 0.0


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("<think>a\nb</think> <answer>4</answer>\n", 1.0),
        ("<think></think><answer>4</answer>", 1.0),
        ("Well. <think>a</think><answer>4</answer>", 0.0),
        ("<think>a</think><answer>4</answer> Done.", 0.0),
        ("", 0.0),
    ],
)
def test_a_format_covers_the_whole_completion(completion: str, reward: float) -> None:
    spec = RewardSpec(type="format", pattern=r"<think>.*</think>\s*<answer>(\d+|none)?.*</answer>")
    assert outcome(spec, completion) == Outcome(reward)


def test_a_format_that_takes_forever_costs_its_sample() -> None:
    found = outcome(RewardSpec(type="format", pattern="(a|aa)+b", timeout_seconds=0.05), "a" * 60)
    assert found.failure == "timeout: the pattern took more than 0.05 s on a completion of 60 characters"


def test_none_of_them_needs_an_answer() -> None:
    assert not needs_answers(RewardSpec(type="format", pattern="a"))
    assert not needs_answers(RewardSpec(repetition=RepetitionPenalty()))
    assert needs_answers(RewardSpec(type="exact"))


def test_they_are_components_of_a_weighted_sum() -> None:
    rewards = (
        "[{name: right, type: exact}, {name: form, weight: 0.5, type: format, pattern: '.*4'}, "
        "{name: long, weight: 0.25, length: {freeTokens: 10, maxTokens: 20}}, {name: again, repetition: {words: 1}}]"
    )
    job = load_job(MANIFEST, ["spec.reward=null", f"spec.rewards={rewards}", "spec.rollout.maxResponseTokens=64"])
    scorer = make_job_scorer(job.spec, Path())
    assert scorer is not None
    [found] = asyncio.run(scorer.score([ToScore("p", "4 4", "4", {}, tokens=20)]))
    assert found == Outcome(-0.25, components={"right": 0.0, "form": 1.0, "long": -1.0, "again": -0.5})
