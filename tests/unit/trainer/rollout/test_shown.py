"""What people see of a step: whole groups with their prompts and advantages, and the lengths by outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.data.rows import Row
from lorarl_trainer.loop import as_shown
from lorarl_trainer.rewards.scores import Outcome
from lorarl_trainer.rollout.collect import Course, Further, ScoredRollouts, joined, shown_samples
from lorarl_trainer.rollout.lockstep import metrics_of
from lorarl_trainer.rollout.rounds import samples_of
from lorarl_trainer.samples.occupancy import Occupancy
from lorarl_trainer.samples.sample import Completion

GROUP = 4
PROMPTS = 3


def rollouts(rewards: list[float]) -> ScoredRollouts:
    """Completions of 1, 2, 3, ... tokens with these rewards."""
    completions = [Completion(np.zeros(n + 1, dtype=int), np.zeros(n + 1), n % 2 == 0, 1) for n in range(len(rewards))]
    outcomes = [Outcome(reward) for reward in rewards]
    texts = [f"text {n}" for n in range(len(rewards))]
    return ScoredRollouts(ROWS[: len(rewards)], completions, texts, np.array(rewards), {}, outcomes, {}, Occupancy())


ROWS = [EncodedRow(Row(f"prompt {p}", "42", {}, 10 + p), [p, p], []) for p in range(PROMPTS) for _ in range(GROUP)]


@pytest.mark.parametrize(("limit", "groups"), [(0, 0), (1, 1), (8, 2), (9, 2), (100, 3)])
def test_the_shown_samples_are_whole_groups(limit: int, groups: int) -> None:
    shown = shown_samples(
        rollouts([0.0, 1.0] * 6), lambda prompts: [f"<s>{ids}" for ids in prompts], group_size=GROUP, limit=limit
    )
    assert [(s.group, s.row, s.model_prompt) for s in shown] == [
        (g, 10 + g, f"<s>[{g}, {g}]") for g in range(groups) for _ in range(GROUP)
    ]
    assert [s.completion for s in shown] == [f"text {n}" for n in range(groups * GROUP)]
    assert all(s.truncated == (n % 2 == 1) and s.tokens == n + 1 for n, s in enumerate(shown))


def test_a_sample_without_a_reward_has_no_advantage() -> None:
    shown = shown_samples(rollouts([0.5, np.nan, 1.0, 1.0]), lambda prompts: ["p"], group_size=GROUP, limit=4)
    given = as_shown(shown, np.array([-1.0, 0.0, 0.5, 0.5, 9.0]))
    assert [sample.advantage for sample in given] == [-1.0, None, 0.5, 0.5]


def test_an_episode_is_shown_and_counted_with_all_of_its_sequences() -> None:
    made = rollouts([0.0, 1.0])
    other = Further(EncodedRow(ROWS[4].row, [7], []), Completion(np.zeros(9, int), np.zeros(9), False, 1), "more")
    courses = [Course(1, 0.0, "done"), Course(2, 0.0, "tokens", sequences=2)]
    branched = replace(made, further=[(), (other,)], courses=courses)

    def decode(prompts: Sequence[Any]) -> list[str]:
        return [f"<s>{ids}" for ids in prompts] or [""]  # as tokenizers do

    first, second = shown_samples(branched, decode, group_size=2, limit=2)
    assert first.further == ()
    assert [(one.model_prompt, one.completion, one.tokens, one.truncated) for one in second.further] == [
        ("<s>[7]", "more", 9, True)
    ]
    metrics = metrics_of(branched, 2)
    assert metrics["response_tokens_mean"] == (1 + 2 + 9) / 2 and metrics["truncated_share"] == 0.5
    assert metrics["response_tokens_high_reward"] == 11.0
    both = joined([replace(made, courses=courses), branched], "field")
    assert both.counts == [1, 1, 1, 2] and both.chosen([3, 0]).counts == [2, 1] and made.counts == []
    assert [len(one.tokens) - one.prompt_length for one in samples_of(both)] == [1, 2, 1, 2, 9]
    assert samples_of(both)[-1].prompt_length == 1


def test_lengths_are_told_by_outcome() -> None:
    metrics = metrics_of(rollouts([1.0, 0.0, 1.0, np.nan]), GROUP)
    assert (metrics["response_tokens_high_reward"], metrics["response_tokens_low_reward"]) == (2.0, 2.0)
    assert metrics_of(rollouts([1.0, 1.0, 0.0, 0.0]), GROUP)["response_tokens_low_reward"] == 3.5
    assert "response_tokens_low_reward" not in metrics_of(rollouts([0.1] * 3), 3), "all are equal"
