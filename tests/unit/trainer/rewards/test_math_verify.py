"""The built-in reward that compares mathematics."""

import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lorarl_api.v1alpha1 import RewardSpec
from lorarl_trainer.rewards.scorer import make_scorer
from lorarl_trainer.rewards.scores import Scorer, ToScore
from unit.trainer.rewards.scoring import score_samples


@pytest.fixture(scope="module")
def math_verify() -> Iterator[Scorer]:
    yield from started(timeout_seconds=60.0)


@pytest.fixture
def impatient() -> Iterator[Scorer]:
    yield from started(timeout_seconds=5.0)


def started(timeout_seconds: float) -> Iterator[Scorer]:
    scorer = make_scorer(RewardSpec(type="math_verify", timeout_seconds=timeout_seconds), Path(), processes=2)
    scorer.warm_up()  # SymPy takes seconds to import
    yield scorer
    scorer.close()


@pytest.mark.parametrize(
    ("completion", "answer", "reward"),
    [
        ("so it is $\\boxed{\\frac{6}{8}}$", "3/4", 1),
        ("The answer is 0.75", "\\frac{3}{4}", 1),
        ("$x^2 + 2x + 1$", "$(x+1)^2$", 1),
        ("we get 1234", "1,234", 1),
        ("Hence \\boxed{5}", "$x=5$", 1),
        ("That is \\boxed{1.6 \\times 10^{-19}}", "1.6e-19", 1),
        ("\\boxed{10^{-5}}", "1e-05", 1),
        ("It loses \\boxed{-5} dollars", "-$5", 1),
        ("\\boxed{1200}", "\\$1,200", 1),
        ("\\boxed{3}. No, wait: \\boxed{4}", "4", 1),
        ("\\boxed{4}. No, wait: \\boxed{3}", "4", 0),
        ("\\boxed{3} and \\boxed{4}", "$\\{3, 4\\}$", 1),
        ("The answer is 41", "42", 0),
        ("I do not know", "42", 0),
        ("", "42", 0),
    ],
)
def test_math_verify_compares_what_is_meant(math_verify, completion, answer, reward):
    assert score_samples(math_verify, [ToScore("p", completion, answer, {})]).rewards.tolist() == [reward]


def test_math_verify_counts_answers_without_mathematics(math_verify):
    scores = score_samples(math_verify, [ToScore("p", "4", "", {}), ToScore("p", "4", "4", {})])
    assert scores.rewards[1] == 1
    assert "no expression in the answer ''" in scores.failures["exception"].first_message


def test_256_math_verify_samples(math_verify):
    step = [ToScore("p", f"First {i}. So $\\boxed{{\\frac{{{i}}}{{7}}}}$", f"{i}/7", {}) for i in range(256)]
    start = time.perf_counter()
    scores = score_samples(math_verify, step)
    print(f"256 math_verify samples: {(time.perf_counter() - start) * 1e3:.0f} ms")
    assert scores.rewards.tolist() == [1] * 256


@pytest.mark.slow
def test_an_expression_that_never_ends_costs_itself_only(impatient):
    scores = score_samples(
        impatient, [ToScore("p", f"$\\boxed{{{c}}}$", "3", {}) for c in ("3", "9^{9^{9^{9}}}+1", "3")]
    )
    assert scores.rewards[[0, 2]].tolist() == [1, 1]
    assert math.isnan(scores.rewards[1])
    assert scores.failures["timeout"].count == 1
