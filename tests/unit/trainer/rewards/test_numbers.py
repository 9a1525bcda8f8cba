"""What a number is: one value however it is written, and no wrong answer that ends in the same digits."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from lorarl_trainer.rewards.builtin import is_numerically_equal
from lorarl_trainer.rewards.numbers import last_number, normalized, one_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", 42),
        ("7 and then 42.", 42),
        ("-5", -5),
        ("\N{MINUS SIGN}5", -5),
        ("x=-5", -5),
        ("(-5)", -5),
        ("12-5", 5),
        ("12 - 5 = 7", 7),
        ("GPT-5", 5),
        ("+5", 5),
        ("3.14", "3.14"),
        (".5", "0.5"),
        ("It is 5.", 5),
        ("0.10", "0.1"),
        ("$1,234,567.50", "1234567.5"),
        ("1,2", 2),
        ("(1,234)", 1234),
        ("1234,567", 567),
        ("1.5e3", 1500),
        ("2E-2", "0.02"),
        ("50%", 50),
        ("The balance is -$5.", -5),
        ("\N{MINUS SIGN}\\$1,200", -1200),
        ("-€.5", "-0.5"),
        ("$5-$10", 10),
        ("12-$3", 3),
        ("3/4", "3/4"),
        ("-3/4", "-3/4"),
        ("1/0", None),
        ("12/05/2024", 2024),
        ("10/2=5", 5),
        ("12345678901234567891", 12345678901234567891),
        ("none", None),
        ("", None),
        ("x²", None),
        ("1" * 5000, None),
        ("1e999999999", None),
        ("1,111" * 4000, 111),
        ("25 cm^2", 25),
        ("5 m/s^{-2}", 5),
        ("25 cm2", 25),
        ("x_1 = 5", 5),
        ("5 million", 5_000_000),
        ("about 2.5 Million people", 2_500_000),
        ("It is $1.25 billion.", 1_250_000_000),
        ("5-million", 5_000_000),
        ("-3 thousand", -3000),
        ("1,200 thousand", 1_200_000),
        ("0.5 hundred", 50),
        ("1.23456 thousand", "1234.56"),
        ("12 million 5", 5),
        ("5 millionaires", 5),
        ("1 000", 1000),
        ("it is 1 000 000 km", 1_000_000),
        ("1 050.50", "1050.5"),
        ("12 345", 345),
        ("in 2020 100", 100),
        ("5k", None),
        ("5bn", None),
        ("5kg", 5),
        ("300 K", 300),
        ("<5", None),
        ("x <= 5", None),
        (">5", None),
        (">=5", None),
        ("> 5", 5),  # a quotation
        ("<answer>5", 5),
        (r"\frac{1}{4}", "1/4"),
        (r"-\dfrac14", "-1/4"),
        (r"\frac{x}{2}", None),
        ("3 1/2", "7/2"),
        (r"3\frac{1}{2}", "7/2"),
        ("-3½", "-7/2"),
        ("10:30", None),
        ("(2, 3)", None),
        (r"\sqrt{2}", None),
        (r"4\pi", None),
        ("2^10", None),
        ("5x", None),
        ("10 ± 2", None),
        (r"x \le 5", None),
        (r"1\,200", 1200),
        ("1\N{NARROW NO-BREAK SPACE}200", 1200),
        (r"3 \times 10^{8}", 3 * 10**8),
        ("10^6", 10**6),
        ("3 × 10⁵ km", 3 * 10**5),
        ("1.5·10⁻³", "0.0015"),
        ("10⁺²", 100),
        ("110⁵", None),
        ("2¹⁰", None),
        ("<answer>5</answer>", 5),
        ("- 5 apples\n- 7 pears", 7),
        ("It is 3/\n4", "3/4"),
        ("3\N{NO-BREAK SPACE}/\t4", "3/4"),
        ("Step 2\n3/4", "3/4"),
        (r"\frac{-3}{4}", "-3/4"),
        (r"x = \frac{ 3 }{-4}", "-3/4"),
        (r"-\frac{-3}{4}", None),
        (r"2\frac{-3}{4}", None),
        ("x = 5\N{SUPERSCRIPT TWO}", None),
        ("sin(30)", None),
    ],
)
def test_the_last_number_of_a_text(text, number):
    assert last_number(text) == (None if number is None else Fraction(number))


@given(
    number=st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-(10**9), max_value=10**9),
    before=st.text(alphabet=st.characters(categories=["L", "N", "Zs"]), max_size=20),
)
@settings(max_examples=200, deadline=None)
def test_a_number_is_found_at_the_end_of_any_text(number, before):
    """In the ways in which numbers are mostly written."""
    assert last_number(f"{before} {number}") == last_number(f"{before} = {number:,}!") == Fraction(number)


PARTS = [
    *list("0123456789.,eE+-/ x\n\t\N{NO-BREAK SPACE}½²٣^({})"),
    "10⁻",
    "⁵",
    r"\frac",
    r"\times 10^",
    "1 1/2",
    "{-3}",
    "{04}",
]


@given(st.lists(st.sampled_from(PARTS), max_size=30).map("".join))
@settings(max_examples=500, deadline=None)
@example("3/\n4")
@example(r"\frac{-3}{%s}" % ("9" * 5000))
def test_no_text_makes_a_comparison_of_numbers_fail(text):
    """It runs in the driver, where an error would end the training."""
    assert not is_numerically_equal("", text, Fraction(0))
    is_numerically_equal(text, "5", Fraction(0))
    is_numerically_equal(text, "2, 3", Fraction(0))


ONE = [
    "36",
    "**36**",
    "$36.00",
    "€36",
    "£ 36",
    "36 USD",
    "#### 36",
    "36%",
    "x = 36",
    "$x=36$",
    r"\boxed{36}",
    "36 apples",
]
ONE += ["The answer is 36.", "12 * 3 = 36", "3 plus 33 is 36.\n#### 36", "36°", "+36", "36.", "so: 36", "3.6e1"]
SEVERAL = [
    "36 cm^2",
    "5 m/s²",
    "2x^2",
    "2, 3",
    "(2, 3)",
    "3:2",
    "10:30",
    "5-10",
    "5–10",
    "x + 2",
    "x - 2",
    "x > 5",
    "√2",
]


SEVERAL += [
    "2π",
    "12 - 5",
    "5 or 6",
    "3,5",
    "10 500",
    "<5",
    ">=5",
    "5k",
    "x=1 or x=2",
    r"\pm 2",
    "x^3",
    "5 km/h",
    "1/2 and 3",
    "[2, 3)",
]


@pytest.mark.parametrize("answer", ONE)
def test_an_answer_is_one_number_with_words_and_marks_around_it(answer: str) -> None:
    assert one_number(answer) == 36


@pytest.mark.parametrize("answer", SEVERAL)
def test_an_answer_of_more_than_one_number_is_told_apart(answer: str) -> None:
    assert one_number(answer) is None
    assert equal(f"It is {answer}.", answer), "who says all of it is right"


def equal(completion: str, answer: str) -> bool:
    return is_numerically_equal(completion, answer, Fraction(1, 10**6))


WHOLE = st.integers(1, 99)
UNITS = st.sampled_from(["cm^2", "m/s^2", "km^3", "cm²", "m^{-1}", "ft^2", "kg m^2"])
FORMS = {
    "units": st.builds(lambda number, unit: f"{number} {unit}", WHOLE, UNITS),
    "fractions": st.builds(
        lambda form, over, under: form % (over, under),
        st.sampled_from([r"\frac{%d}{%d}", "%d/%d", "%d / %d", r"$\dfrac{%d}{%d}$"]),
        WHOLE,
        WHOLE,
    ),
    "mixed numbers": st.builds(lambda one, over: f"{one} {over}/100", WHOLE, WHOLE),
    "times": st.builds(lambda hour, minute: f"{hour % 24}:{minute % 60:02}", WHOLE, WHOLE),
    "ratios": st.builds(lambda one, other: f"{one}:{other}", WHOLE, WHOLE),
    "tuples": st.lists(WHOLE, min_size=2, max_size=4).map(lambda numbers: f"({', '.join(map(str, numbers))})"),
    "lists": st.lists(WHOLE, min_size=2, max_size=4).map(lambda numbers: ", ".join(map(str, numbers))),
    "ranges": st.builds(lambda low, high: f"{low}-{low + high}", WHOLE, WHOLE),
    "intervals": st.builds(
        lambda low, high, marks: f"{marks[0]}{low}, {low + high}{marks[1]}", WHOLE, WHOLE, st.sampled_from(["[)", "(]"])
    ),
    "dates": st.builds(lambda day, month: f"{day % 28 + 1}/{month % 12 + 1}/2024", WHOLE, WHOLE),
    "polynomials": st.builds(lambda one, two: f"{one}x^2 + {two}", WHOLE, WHOLE),
    "powers": st.builds(lambda one, two: f"{one}^{two}", WHOLE.filter(lambda base: base != 10), WHOLE),
    "powers of ten": st.builds(lambda one, two: rf"{one} \times 10^{{{two}}}", WHOLE, WHOLE),
    "roots": st.builds(lambda one, two: rf"{one}\sqrt{{{two}}}", WHOLE, WHOLE),
    "inequalities": st.builds(lambda sign, one: f"x {sign} {one}", st.sampled_from(["<", ">", "≤"]), WHOLE),
    "thousands": st.builds(lambda one: f"{one} 000", WHOLE),
}
SAID = st.sampled_from(["%s", "The answer is %s.", "\\boxed{%s}", "**%s**", "so we get %s", "I add: %s\n", "= %s"])


def value_of(answer: str) -> object:
    found = last_number(answer)
    return "".join(answer.split()) if found is None or one_number(answer) is None else found


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_wrong_answer_of_a_form_is_right(form: str, data: st.DataObject) -> None:
    answer, other = data.draw(FORMS[form]), data.draw(FORMS[form])
    said = data.draw(SAID)
    assert equal(said % answer, answer), "the right one is"
    assume(value_of(answer) != value_of(other))
    assert not equal(said % other, answer)


@pytest.mark.parametrize("form", ["times", "ratios", "tuples", "intervals", "powers", "roots", "inequalities"])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_part_of_something_is_a_number(form: str, data: st.DataObject) -> None:
    """A completion that says (2, 3) is not right where the answer is 3."""
    completion = data.draw(FORMS[form])
    assert last_number(completion) is last_number(f"It is {completion}.") is None


def test_groups_of_digits_without_end_stay_as_they_are() -> None:
    """In a moment: with backtracking, 200,000 characters took a minute."""
    text = "1 " + "000 " * 50_000 + "0"
    assert normalized(text) == text
    assert normalized("1 " + "000 " * 50_000 + "kg") == "1" + "000" * 50_000 + " kg"
