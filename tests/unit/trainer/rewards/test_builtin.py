import asyncio
import math
import re
import time
from pathlib import Path

import pytest

from lorarl_api.v1alpha1 import RewardSpec
from lorarl_trainer.data.rows import Row
from lorarl_trainer.errors import InputError
from lorarl_trainer.rewards.builtin import unanswerable
from lorarl_trainer.rewards.scorer import make_scorer
from lorarl_trainer.rewards.scores import Scores, ToScore, collect


def score(spec: RewardSpec, *pairs: tuple[str, str | None]) -> Scores:
    samples = [ToScore("prompt", completion, answer, {}) for completion, answer in pairs]
    scorer = make_scorer(spec, Path())
    return collect(asyncio.run(scorer.score(samples)), scorer.field)


@pytest.mark.parametrize(
    ("completion", "answer", "reward"),
    [("42", "42", 1), (" 42\n", "42", 1), ("42", " 42 ", 1), ("42.", "42", 0), ("", "42", 0), ("Yes", "yes", 0)],
)
def test_exact_compares_without_white_space_around(completion, answer, reward):
    assert score(RewardSpec(type="exact"), (completion, answer)).rewards.tolist() == [reward]


def test_answers_without_a_number_are_named_where_numbers_are_compared():
    rows = [Row("p", answer, {}, number) for number, answer in enumerate(["4", "four", "", None, "#### 5", "n/a"], 1)]
    rewards = {"spec.rewards[0]": RewardSpec(type="exact"), "spec.rewards[1]": RewardSpec(type="numeric")}
    (found,) = unanswerable(rewards, rows)
    assert found.startswith(
        "spec.rewards[1].type: numeric, but 2 of 6 answers have no number, first that of row 2 ('four')"
    )
    assert list(unanswerable(rewards, rows[:1])) == []


def test_numeric_accepts_what_differs_by_the_tolerance_at_most():
    assert score(
        RewardSpec(type="numeric"), ("so 0.75", "3/4"), ("0.7500001", "0.75"), ("none", "4")
    ).rewards.tolist() == [1, 0, 0]
    assert score(RewardSpec(type="numeric", tolerance=0.5), ("3.5", "4"), ("3.4", "4")).rewards.tolist() == [1, 0]
    assert score(RewardSpec(type="numeric", tolerance=0.3), ("1.3", "1"), ("1.31", "1")).rewards.tolist() == [1, 0]


def test_thoughts_are_no_answer_to_numeric():
    completions = ["<think>6</think> I do not know.", "<think> so 6", "6 </think> It is 7", "<think>7</think> 6"]
    scores = score(RewardSpec(type="numeric"), *((completion, "6") for completion in completions))
    assert scores.rewards.tolist() == [0, 0, 0, 1]


def test_answers_of_more_than_one_number_are_named_with_what_to_use():
    answers = ["#### 72", "36 cm^2", "3/4", "10:30", "-$5", "2, 3", "Paris"]
    rows = [Row("p", answer, {}, number) for number, answer in enumerate(answers, 1)]
    none, several = unanswerable({"spec.reward": RewardSpec(type="numeric")}, rows)
    assert "1 of 7 answers have no number, first that of row 7 ('Paris')" in none
    assert "3 of 7 answers are more than one number, first that of row 2 ('36 cm^2')" in several
    assert "math_verify" in several and "exact or regex" in several
    (words,) = unanswerable({"spec.reward": RewardSpec(type="math_verify")}, rows)
    assert "1 of 7 answers are words, first that of row 7 ('Paris')" in words


def test_regex_compares_its_first_group_or_the_whole_match():
    assert score(
        RewardSpec(type="regex", pattern=r"answer: (\w+)"), ("the answer: blue!", "blue"), ("blue", "blue")
    ).rewards.tolist() == [
        1,
        0,
    ]
    assert score(RewardSpec(type="regex", pattern=r"\d+"), ("7 of 9", "7"), ("7 of 9", "9")).rewards.tolist() == [1, 0]
    assert score(RewardSpec(type="regex", pattern=r"(a)?b"), ("b", "a"), ("ab", "a")).rewards.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("pattern", "completion", "found"),
    [
        (r"\\mathrm{d}x = (\d+)", r"so \mathrm{d}x = 5", True),
        (r"N_{d} = (\d+)", "N_{d} = 5", True),
        (r"N_{d} = (\d+)", "N = 5", False),
        (r"x_{i} = (\d+)", "x_7 = 5", False),
        (r"\\frac{d}{dx} = (\d+)", r"\frac{d}{dx} = 5", True),
        (r"\{x\}[{}]{2} (\d)", "{x}{} 5", True),
        (r"\N{DIGIT FIVE}{2,}", "55", False),
        (r"a{,2}(5)$", "aa5", True),
        (r"[]{e}]+ (5)", "]}{e 5", True),
    ],
)
def test_braces_mean_what_they_mean_to_python(pattern, completion, found):
    assert score(RewardSpec(type="regex", pattern=pattern), (completion, "5")).rewards.tolist() == [found]
    match = re.search(pattern, completion)
    assert bool(match and match[match.re.groups and 1] == "5") is found


def test_a_pattern_that_does_not_compile_is_refused_at_the_start():
    with pytest.raises(InputError) as caught:
        make_scorer(RewardSpec.model_construct(type="regex", pattern="(a"), Path())
    assert caught.value.field == "spec.reward.pattern"
    assert "missing )" in caught.value.got


def test_a_pattern_that_explodes_costs_the_time_limit_and_that_sample_only():
    spec = RewardSpec(type="regex", pattern=r"^(a|aa)+$", timeout_seconds=2.0)
    scores = score(spec, ("aa", "aa"), ("a" * 60 + "b", "aa"), ("a", "a"))
    assert math.isnan(scores.rewards[1])
    assert scores.failures["timeout"].count == 1
    assert "2 s" in scores.failures["timeout"].first_message


def test_rows_without_answer_are_left_out_and_a_step_of_them_stops():
    """A step with nothing but such rows stops the run."""
    scores = score(RewardSpec(type="exact"), ("a", None), ("a", "a"))
    assert math.isnan(scores.rewards[0])
    assert scores.failures["wrong_type"].count == 1
    with pytest.raises(InputError, match=r"no score for any of 2 completions .*2 x wrong_type: the row has no answer"):
        score(RewardSpec(type="exact"), ("a", None), ("a", None))


@pytest.mark.parametrize(
    "spec", [RewardSpec(type="exact"), RewardSpec(type="numeric"), RewardSpec(type="regex", pattern=r"is (\d+)")]
)
def test_ten_thousand_samples_take_less_than_half_a_second(spec):
    samples = [
        ToScore("p", f"{'We add them. ' * 40} So the sum of {i} and 1 is {i + 1}.", str(i + 1), {})
        for i in range(10_000)
    ]
    scorer = make_scorer(spec, Path())
    times = []
    for _ in range(5):
        start = time.process_time()  # a busy machine makes it wait, not compute
        asyncio.run(scorer.score(samples))
        times.append(time.process_time() - start)
    print(f"{spec.type}: {min(times) * 1e3:.1f} ms")
    assert min(times) < 0.5
