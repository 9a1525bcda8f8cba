"""JSON bodies as client 0.38.0 sends them, and the ones that are refused."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from lorarl_trainer.samples.sampling import Sampling
from lorarl_trainer.tinker.refusals import RefusedError
from lorarl_trainer.tinker.requests import OptimStep, Sample, read

CHUNK = {"tokens": [5, 6], "type": "encoded_text"}


def sample(**fields: Any) -> Sample:
    body = {"prompt": {"chunks": [CHUNK, CHUNK]}, "sampling_params": {"max_tokens": 4}, "type": "sample"}
    return read(Sample, json.dumps(body | fields).encode())


def test_a_step_has_the_numbers_of_its_own_request() -> None:
    adam = {"learning_rate": 1e-3, "beta1": 0.8, "beta2": 0.9, "eps": 1e-8, "weight_decay": 0.1, "grad_clip_norm": 0.0}
    step = read(OptimStep, json.dumps({"model_id": "m", "seq_id": 2, "adam_params": adam}).encode())
    assert step.adam_params is not None and step.adam_params.numbers.max_norm == math.inf
    assert (step.adam_params.numbers.beta1, step.adam_params.numbers.epsilon) == (0.8, 1e-8)


def test_a_stop_takes_the_place_of_the_models_own() -> None:
    assert sample().tokens == [5, 6, 5, 6] and sample().sampling_params.tokens is None
    for stop, tokens, texts in (
        ("END", (), ("END",)),
        (["A", "B"], (), ("A", "B")),
        ([3, 4], (3, 4), ()),
        ([], (), ()),
    ):
        given = sample(sampling_params={"stop": stop}).sampling_params
        assert (given.tokens, given.texts) == (tokens, texts)


def test_sampling_is_the_engines() -> None:
    given = {"temperature": 0.7, "top_k": -1, "top_p": 0.9}
    assert sample(sampling_params=given).sampling_params.sampling == Sampling(0.7, 0.9, 0)
    assert sample(sampling_params={"temperature": 0}).sampling_params.sampling is None


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"topk_prompt_logprobs": 3}, "topk_prompt_logprobs is not available"),
        ({"record_stability_info": True}, "use loss_fn=importance_sampling"),
        ({"prompt": {"chunks": [{"type": "image", "tokens": []}]}}, "only encoded_text"),
        ({"num_samples": 0}, "num_samples: "),
        ({"unheard_of": 1}, "unheard_of: "),
        ({"sampling_params": {"top_p": 2}}, "sampling_params.top_p: "),
    ],
)
def test_what_does_not_exist_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(RefusedError, match=named):
        sample(**fields).require_supported()
