"""The built-in reward that compares mathematics."""

import math
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from lorarl_api.v1alpha1 import RewardSpec
from lorarl_trainer.rewards.builtin import is_numerically_equal
from lorarl_trainer.rewards.mathematics import _written, score
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


SAME = [
    *[
        ("1200", one)
        for one in (
            r"1\,200",
            "1,200",
            "1\N{THIN SPACE}200",
            "€1,200",
            "£ 1200",
            "+1200",
            "1.2 \\times 10^3",
            "1.2 × 10³",
        )
    ],
    *[("3 1/2", one) for one in ("3.5", r"3\frac{1}{2}", "3½", "7/2", r"\frac72", "€3.50")],
    *[("-5", one) for one in ("-5", "\N{MINUS SIGN}5", "\N{EN DASH}5", "-5.0", "-€5", r"-\$5")],
]


@pytest.mark.parametrize("said", ["%s", "The answer is %s", r"\boxed{%s}"])
@pytest.mark.parametrize(("number", "written"), SAME)
def test_a_number_is_the_same_for_numeric_and_math_verify(number: str, written: str, said: str) -> None:
    for completion, answer in ((said % written, number), (said % number, written)):
        assert is_numerically_equal(completion, answer, Fraction(0))
        assert score("p", completion, answer, {}) == 1, (completion, answer)


RIGHT = [
    ("B", "The answer is B."),
    ("C", "The answer is (C)."),
    ("B", r"\boxed{\text{(B) } 12}"),
    ("D", "**D**"),
    ("(-\\infty, 2]", "\\boxed{x \\le 2}"),
    ("Paris", "The answer is Paris."),
    ("Paris", r"\boxed{\text{Paris}}"),
    ("10:30", "We meet at 10:30 or later.\nTime: 10:30"),
    ("6", r"<think>\boxed{7}</think> \boxed{6}"),
    ("1e-5", r"\boxed{0.00001}"),
    ("0.001", r"\boxed{1e-3}"),
    ("1500", "The answer is 1.5e3."),
    ("x+5", r"\boxed{x +5}"),
    (r"\pi + 3", r"\boxed{\pi +3}"),
    ("5", "The answer is +5."),
    ("800", r"\boxed{2^3 \times 10^2}"),
    ("5", r"\boxed{5€}"),
    ("A", r"\boxed{\textbf{(A)}\ 12}"),
    ("B", r"\boxed{\mathrm{B}}"),
    ("B", r"\boxed{Option B}"),
    ("B", "The answer is B. Option C is wrong, since 3 is odd."),
    ("A", "The answer is A because it is even."),
    ("B", "B) Paris"),
    (r"\begin{pmatrix} a & b \end{pmatrix}", r"\boxed{\begin{pmatrix} a & b \end{pmatrix}}"),
]
WRONG = [
    ("B", r"\boxed{C}"),
    ("A", "The answer is A bird"),
    ("C", "The answer is B. Option C is wrong, since 3 is odd."),
    ("A", r"\boxed{A, C}"),
    ("A", r"\boxed{A \cup B}"),
    ("6x", r"\boxed{2x +3}"),
    ("B", "The answer is not B, it is C."),
    ("Paris", r"\boxed{Pairs}"),
    ("Zürich", r"\boxed{Zirüch}"),
    ("10:30", r"\boxed{20:60}"),
    ("6", r"<think>\boxed{6}</think> The answer is 7."),
    ("6", r"<think>so \boxed{6}"),
    ("3 1/2", r"\boxed{3 \cdot \frac{1}{2}}"),
    (r"\frac{1}{2^{99}}", r"\boxed{\frac{1}{2^{98}}}"),
    ("0.00001234", r"\boxed{0.000012}"),
    ("0", r"\boxed{0.0000001}"),
    ("[2, 3)", r"\boxed{(2, 3]}"),
    ("2, 3", r"\boxed{2}"),
]


@pytest.mark.parametrize(("answer", "completion"), RIGHT)
def test_what_math_verify_does_not_read_itself_is_right(answer: str, completion: str) -> None:
    assert score("p", completion, answer, {}) == 1


@pytest.mark.parametrize(("answer", "completion"), WRONG)
def test_what_math_verify_would_let_pass_is_wrong(answer: str, completion: str) -> None:
    assert score("p", completion, answer, {}) == 0


@pytest.mark.parametrize(
    "text",
    [
        "9" * 20_000,
        rf"\frac{{{'9' * 5000}}}{{2}}",
        "1 2/" + "9" * 5000,
        "The answer is A" + "," * 20_000,
        r"\boxed{A" + "(" * 20_000,
        "= " * 9_000,
    ],
)
def test_a_long_text_takes_no_long_time(text: str) -> None:
    start = time.perf_counter()
    assert score("p", text, "B", {}) == 0
    _written(text)
    assert time.perf_counter() - start < 30


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
