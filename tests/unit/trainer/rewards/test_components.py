"""A reward may be a mapping: its score is the reward, and its other numbers are recorded as components."""

import pytest

from lorarl_trainer.rewards.components import MOST_NAMES, component_metrics, odd_components
from lorarl_trainer.rewards.scores import Outcome, ToScore
from lorarl_trainer.rewards.weighted import Part, weighted_sum
from unit.trainer.rewards.scoring import samples, score, score_outcomes


@pytest.mark.slow
@pytest.mark.parametrize("function", ["parts", "parts_async"])
def test_a_mapping_is_a_score_with_components(scorer, function):
    outcomes = score_outcomes(scorer(f"my_rewards:{function}"), samples("<ab>", "abc"))
    assert [outcome.value for outcome in outcomes] == [4, 3]
    assert [outcome.components for outcome in outcomes] == [{"format": 1, "length": 4}, {"format": 0, "length": 3}]
    assert component_metrics(outcomes) == {"reward/format": 0.5, "reward/length": 3.5}
    assert list(odd_components(outcomes)) == []


@pytest.mark.slow
def test_a_mapping_that_cannot_be_used_costs_its_sample_and_says_why(scorer):
    names = ("no score", "none", "nan", "score", "name", "number", "many", "fine")
    outcomes = score_outcomes(scorer("my_rewards:bad_parts"), samples(*names))
    assert {name: outcome.failure for name, outcome in zip(names, outcomes, strict=True)} == {
        "no score": "wrong_type: returned a mapping without 'score': {'format': 1.0}",
        "none": "wrong_type: returned NoneType None as 'format'",
        "nan": "non_finite: returned nan as 'format'",
        "score": "wrong_type: returned str 'high' as 'score'",
        "name": "wrong_type: returned a component 'a name'; use at most 64 of A-Z a-z 0-9 _ . - in names",
        "number": "wrong_type: returned a component 3; use at most 64 of A-Z a-z 0-9 _ . - in names",
        "many": "wrong_type: returned 33 components; at most 32 are recorded",
        "fine": None,
    }


def test_a_component_that_some_completions_lack_is_a_warning():
    outcomes = [Outcome(1.0, components={"a": 1.0, "b": 3.0}), Outcome(0.0, components={"a": 0.0})]
    outcomes.append(Outcome.failed("timeout", "took more than 1 s"))
    assert component_metrics(outcomes) == {"reward/a": 0.5, "reward/b": 3.0}
    [(kind, warning)] = odd_components(outcomes)
    assert kind == "partial"
    assert warning.startswith("1 of 2 completions have the component 'b' of the reward. Its mean is over those;")


def test_a_reward_of_weight_0_that_fails_is_a_warning_with_its_reason():
    parts: list[Part] = [
        Part(f"spec.rewards[{index}]", name, weight, scorer=None)  # type: ignore[arg-type]  # nothing is asked
        for index, (name, weight) in enumerate([("right", 1.0), ("words", 0.0)])
    ]
    failed = Outcome.failed("exception", "KeyError: 'x' (my_rewards.py, line 2)")
    always = [weighted_sum(parts, [Outcome(1.0), failed]) for _ in range(3)]
    [(kind, warning)] = odd_components(always)
    assert kind == "unrecorded words"
    assert "the reward words, which has weight 0, failed for 3 of 3 completions (exception: KeyError: 'x'" in warning
    once = [*always[:1], weighted_sum(parts, [Outcome(1.0), Outcome(5.0)])]
    [(kind, warning)] = odd_components(once)
    assert kind == "unrecorded words" and "1 of 2" in warning
    assert component_metrics(once) == {"reward/right": 1.0, "reward/words": 5.0}


def test_names_made_of_the_data_do_not_flood_the_trackers():
    outcomes = [Outcome(1.0, components={f"row-{index}": 1.0}) for index in range(MOST_NAMES + 1)]
    assert len(component_metrics(outcomes)) == MOST_NAMES
    assert [kind for kind, _ in odd_components(outcomes)] == ["names"]


@pytest.mark.slow
@pytest.mark.parametrize("function", ["told", "told_by_keyword"])
def test_a_function_that_asks_for_it_learns_of_the_cut(scorer, function):
    whole, cut = (ToScore("p", "c", "a", {}, truncated=truncated) for truncated in (False, True))
    assert [o.value for o in score_outcomes(scorer(f"my_rewards:{function}"), [whole, cut])] == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize(("function", "expected"), [("with_options", 0), ("other_order", 3)])
def test_a_function_that_does_not_ask_gets_four_arguments(scorer, function, expected):
    """Arbitrary keywords are no request, nor is the name of one of the four."""
    assert score(scorer(f"my_rewards:{function}"), "abc").rewards.tolist() == [expected]
