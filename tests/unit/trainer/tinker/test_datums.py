"""What a training request becomes, and which ones are refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from lorarl_trainer.samples.requests import LossChoice
from lorarl_trainer.tinker.datums import update_request
from lorarl_trainer.tinker.refusals import RefusedError
from lorarl_trainer.tinker.wire import Datum, Passes


def passes(loss: str = "importance_sampling", options: dict[str, Any] | None = None, **inputs: Any) -> Passes:
    arrays = {
        "target_tokens": np.array([0, 7, 9]),
        "logprobs": np.array([0, -1.5, -0.25], np.float32),
        "advantages": np.array([0, 1, -1], np.float32),
    }
    given = {name: value for name, value in (arrays | inputs).items() if value is not None}
    return Passes("m", 1, [Datum(np.array([5, 6, 7]), given)], loss, options or {}, forward_only=False)


def test_every_position_is_trained_on_its_own_target() -> None:
    request = update_request(passes(), 10, 8)
    [sample] = request.samples
    assert sample.tokens.tolist() == [5, 6, 7, 9] and sample.prompt_length == 1
    assert sample.trained_targets.tolist() == [0, 7, 9]
    assert np.asarray(sample.advantage).tolist() == [0, 1, -1]
    assert request.normalizer == 1, "losses are sums"


@pytest.mark.parametrize(
    ("loss", "options", "expected"),
    [
        ("importance_sampling", {}, LossChoice("policy_gradient", clip_range=math.inf)),
        ("ppo", {}, LossChoice("policy_gradient", clip_range=1 - 0.8, clip_range_high=1.2 - 1)),
        (
            "cispo",
            {"clip_low_threshold": 0.5, "clip_high_threshold": 4.0},
            LossChoice("policy_gradient", surrogate="weighted", least_weight=0.5, clip_range_high=3.0),
        ),
    ],
)
def test_losses_are_the_trainers_own(loss: str, options: dict[str, Any], expected: LossChoice) -> None:
    assert update_request(passes(loss, options), 10, 8).loss == expected


def test_weights_of_cross_entropy_are_1_unless_they_are_sent() -> None:
    alone = {"logprobs": None, "advantages": None}
    [without] = update_request(passes("cross_entropy", **alone), 10, 8).samples
    [given] = update_request(passes("cross_entropy", **alone, weights=np.array([0.0, 0.5, 2.0])), 10, 8).samples
    assert np.asarray(without.advantage).tolist() == [1, 1, 1] and np.asarray(given.advantage).tolist() == [0, 0.5, 2]


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        (passes("stable_reinforce"), "stable_reinforce, whose formula is not published"),
        (passes("gspo"), "this service has cross_entropy, importance_sampling, ppo, cispo"),
        (passes("ppo", {"clip": 0.1}), "loss_fn_config has clip, which ppo does not have"),
        (passes("ppo", {"clip_low_threshold": "low"}), "it must be a number"),
        (passes(logprobs=None), r"data\[0\].loss_fn_inputs\[logprobs\] is missing"),
        (passes(advantages=np.ones(2)), r"\[advantages\] has 2 values; model_input has 3 tokens"),
        (passes(advantages=np.array([0, math.nan, 0])), "not finite"),
        (passes(target_tokens=np.array([0, 10, 1])), "target_tokens must be numbers of tokens, from 0 to 9"),
        (passes(more=np.ones(3)), "loss_fn_inputs has more"),
        (Passes("m", 1, [], "ppo", {}, forward_only=False), "data is empty"),
        (Passes("m", 1, [Datum(np.arange(8), {})], "ppo", {}, forward_only=False), "this service takes 1 to 7"),
    ],
)
def test_what_does_not_exist_is_refused(asked: Passes, named: str) -> None:
    with pytest.raises(RefusedError, match=named):
        update_request(asked, 10, 8)
