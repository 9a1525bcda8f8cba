"""A run that has nothing to learn from warns once, and names the likely cause."""

from __future__ import annotations

import numpy as np
import pytest

from lorarl_api.v1alpha1 import RolloutSpec
from lorarl_trainer.algorithms.groups import with_signal
from lorarl_trainer.rollout.signal import PATIENCE, SignalWatch

NAN = np.nan
DIFFERENT, SAME = ["a", "b", "c", "d"], ["a", "a", "b", "b"]


def warnings_of(
    rewards: list[list[float]], texts: list[str], truncated: float = 0.0, temperature: float = 1.0, steps: int = 9
) -> list[tuple[str, str]]:
    watch = SignalWatch(RolloutSpec(temperature=temperature, max_response_tokens=24))
    return [
        warning for _ in range(steps) if (warning := watch.after_step(np.array(rewards, dtype=float), texts, truncated))
    ]


def test_a_group_has_signal_if_two_scored_completions_differ() -> None:
    rewards_P_G = np.array([[0, 1, NAN], [1, 1, NAN], [0.5, NAN, NAN], [NAN, NAN, NAN], [0, 0, 1e-9]])
    assert with_signal(rewards_P_G).tolist() == [True, False, False, False, True]


@pytest.mark.parametrize(
    ("cause", "rewards", "texts", "more", "fix"),
    [
        ("zero", [[0, 0], [0, NAN]], DIFFERENT, {}, "samples.jsonl"),
        ("truncated", [[0, 0], [0, 0]], DIFFERENT, {"truncated": 0.75}, "75% of the completions were cut off at spec."),
        ("one", [[1, 1], [1, 1]], DIFFERENT, {}, "too easy"),
        ("one", [[0.7 + 0.2 + 0.1] * 2, [1, 1]], DIFFERENT, {}, "too easy"),
        ("zero", [[0.1 + 0.2 - 0.3] * 2, [0, 0]], DIFFERENT, {}, "samples.jsonl"),
        ("constant", [[0.1 + 0.2] * 2, [0.3, 0.3]], DIFFERENT, {}, "every reward is 0.3. The reward seems to ignore"),
        ("constant", [[1e-7, 1e-7]], DIFFERENT, {}, "every reward is 1e-07. The reward seems to ignore"),
        ("constant", [[0.5, 0.5], [0.5, 0.5]], DIFFERENT, {}, "every reward is 0.5. The reward seems to ignore"),
        ("temperature", [[0, 0], [1, 1]], SAME, {"temperature": 0.1}, "Raise spec.rollout.temperature (0.1)"),
        ("certain", [[0, 0], [1, 1]], SAME, {}, "certain of its answers"),
        ("prompt", [[0, 0], [1, 1]], DIFFERENT, {}, "only at the prompt"),
        ("unscored", [[1, NAN], [NAN, NAN]], DIFFERENT, {}, "Fix the reward"),
    ],
)
def test_no_signal_is_one_warning_with_its_cause(
    cause: str, rewards: list[list[float]], texts: list[str], more: dict[str, float], fix: str
) -> None:
    [(found, warning)] = warnings_of(rewards, texts, **more)  # type: ignore[arg-type]
    assert found == cause
    assert warning.startswith("no group had signal in 3 steps in a row, so the model learned nothing: ")
    assert fix in warning


def test_steps_without_signal_must_be_in_a_row() -> None:
    watch = SignalWatch(RolloutSpec())
    none, some = np.zeros((1, 2)), np.array([[0.0, 1.0]])
    for rewards_P_G in [none, none, some] * PATIENCE:
        assert watch.after_step(rewards_P_G, ["a", "b"], 0.0) is None


def test_one_group_with_signal_is_enough() -> None:
    assert warnings_of([[0, 0], [0, 1]], DIFFERENT) == []


@pytest.mark.parametrize(("shares", "said"), [([0.94, 0.9], True), ([0.25], True), ([0.2, 0.9], False), ([0.0], False)])
def test_a_first_step_that_is_cut_off_says_once_what_that_teaches(shares: list[float], said: bool) -> None:
    watch = SignalWatch(RolloutSpec(max_response_tokens=32))
    found = [watch.at_first(share) for share in shares]
    assert [warning is not None for warning in found] == [said] + [False] * (len(shares) - 1)
    if said:
        assert f"{shares[0]:.0%} of the first step's completions were cut off" in str(found[0])
        assert "maxResponseTokens (32)" in str(found[0]) and "set it to 64" in str(found[0])


def test_episodes_that_end_for_want_of_tokens_name_both_limits() -> None:
    warning = SignalWatch(RolloutSpec(max_response_tokens=24)).at_first(0.5, episodes=True)
    assert warning is not None and warning.startswith(
        "50% of the first step's episodes were ended by a limit of tokens"
    )
    assert "spec.environment.maxTurnTokens" in warning and "spec.rollout.maxResponseTokens (24)" in warning
