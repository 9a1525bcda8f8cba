"""Several rewards: their weighted sum is the score, and each is a component. And how many failures a run endures."""

import asyncio
import math

import pytest

from lorarl_api.load import load_job
from lorarl_trainer.errors import InputError
from lorarl_trainer.rewards.scorer import make_job_scorer
from lorarl_trainer.rewards.scores import Outcome, first_failures, require_scored
from lorarl_trainer.rewards.weighted import Part, weighted_sum
from unit.trainer.launch.test_identity import MANIFEST
from unit.trainer.rewards.scoring import FUNCTIONS, samples

# The sum asks nothing of their scorers.
PARTS = [
    Part(f"spec.rewards[{index}]", name, weight, scorer=None)
    for index, (name, weight) in enumerate([("right", 1.0), ("tidy", 0.5), ("length", 0.0)])
]


def test_the_score_is_the_weighted_sum_and_parts_are_components():
    outcome = weighted_sum(PARTS, [Outcome(1), Outcome(3, components={"lines": 2}), Outcome(40)])
    assert outcome == Outcome(2.5, components={"right": 1, "tidy": 3, "tidy/lines": 2, "length": 40})


def test_a_sum_without_one_of_its_terms_is_no_score():
    failed = Outcome.failed("exception", "KeyError: 'gold' (m.py, line 2)")
    outcome = weighted_sum(PARTS, [Outcome(1), failed, Outcome(40)])
    assert math.isnan(outcome.value)
    assert outcome.failure == "exception: tidy: KeyError: 'gold' (m.py, line 2)"
    assert outcome.reward == "spec.rewards[1]"


def test_of_several_failures_the_first_in_the_manifest_counts():
    failures = [Outcome.failed("exception", f"of {part.name}") for part in PARTS]
    assert weighted_sum(PARTS, failures).failure == "exception: right: of right"
    assert weighted_sum(PARTS, failures).reward == "spec.rewards[0]"


def test_a_reward_that_is_only_recorded_costs_only_its_component():
    outcome = weighted_sum(PARTS, [Outcome(1), Outcome(1), Outcome.failed("timeout", "took more than 1 s")])
    lost = {"length": "timeout: took more than 1 s"}
    assert outcome == Outcome(1.5, components={"right": 1, "tidy": 1}, unrecorded=lost)


def test_a_sum_beyond_all_numbers_is_no_score():
    parts = [Part("spec.rewards[0]", "huge", 1e6, scorer=None)]
    assert weighted_sum(parts, [Outcome(1e305)]).failure == "non_finite: the weighted sum is inf"


@pytest.mark.slow
def test_built_in_and_own_rewards_score_together(tmp_path):
    (tmp_path / "my_rewards.py").write_text(FUNCTIONS)
    rewards = "[{name: right, type: exact}, {name: own, weight: 0.1, function: 'my_rewards:parts'}]"
    job = load_job(MANIFEST, ["spec.reward=null", f"spec.rewards={rewards}"])
    scorer = make_job_scorer(job.spec, tmp_path)
    first, second = asyncio.run(scorer.score(samples("a", "<ab>")))
    scorer.close()
    assert first == Outcome(1.1, components={"right": 1, "own": 1, "own/format": 0, "own/length": 1})
    assert second == Outcome(0.4, components={"right": 0, "own": 4, "own/format": 1, "own/length": 4})


@pytest.mark.slow
def test_an_error_names_the_reward_of_the_list(tmp_path):
    job = load_job(MANIFEST, ["spec.reward=null", "spec.rewards=[{name: own, function: 'nowhere:score'}]"])
    scorer = make_job_scorer(job.spec, tmp_path)
    with pytest.raises(InputError, match=r"spec\.rewards\[0\]\.function: got nowhere:score, but there is no module"):
        asyncio.run(scorer.ready())
    scorer.close()


def outcomes(failed: int, scored: int, **more: str) -> list[Outcome]:
    failures = [Outcome(math.nan, "exception", f"KeyError: {index % 2}", **more) for index in range(failed)]
    return [*failures, Outcome(math.nan, "timeout", "took more than 1 s", **more), *[Outcome(1.0)] * scored]


def test_more_failures_than_allowed_end_the_run_with_the_most_common_one():
    require_scored(outcomes(3, 12), {"spec.reward": 0.25}, "in step 7")
    with pytest.raises(InputError) as stopped:
        require_scored(outcomes(3, 11), {"spec.reward": 0.25}, "in step 7")
    assert str(stopped.value) == (
        "spec.reward.maxFailedShare: got 4 of 15 completions without a score in step 7 (most often, 2 x, exception: "
        "KeyError: 0), expected at most 0.25 of them. Fix the reward or its data, or raise spec.reward.maxFailedShare."
    )


def test_each_reward_that_fails_has_its_own_warning():
    failed = outcomes(2, 4, reward="spec.rewards[0]") + outcomes(1, 0, reward="spec.rewards[1]")
    assert [(cause, failure.count) for cause, failure in first_failures(failed).values()] == [
        ("exception", 2),
        ("timeout", 1),
        ("exception", 1),
        ("timeout", 1),
    ]


def test_each_of_several_rewards_has_its_own_limit():
    failed = outcomes(3, 4, reward="spec.rewards[1]")
    require_scored(failed, {"spec.rewards[0]": 0.0, "spec.rewards[1]": 0.5}, "in step 1")
    with pytest.raises(InputError, match=r"spec\.rewards\[1\]\.maxFailedShare: got 4 of 8"):
        require_scored(failed, {"spec.rewards[0]": 0.5, "spec.rewards[1]": 0.4}, "in step 1")
