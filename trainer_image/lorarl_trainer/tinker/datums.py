"""From the data of a training request to the trainer's samples and loss. Pure functions.

Every position is trained, with a weight of zero where the client does not want it, and every log-probability is
returned: a target need not be the token that follows. Losses are sums over tokens, as in the API.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lorarl_trainer.samples.requests import LossChoice, UpdateRequest
from lorarl_trainer.samples.sample import Sample
from lorarl_trainer.samples.wire import Samples
from lorarl_trainer.tinker.refusals import RefusedError
from lorarl_trainer.tinker.wire import Datum, Passes

type _Options = Mapping[str, float]
_LOW, _HIGH = "clip_low_threshold", "clip_high_threshold"
_RATIOS = {_LOW: 0.8, _HIGH: 1.2}
"""Of ppo and cispo, by default: between these the probability ratio is not clipped."""
_UNKNOWN_FORMULA = "stable_reinforce"


@dataclass(frozen=True)
class _Loss:
    """A loss of the API.

    Attributes:
        choice: makes the trainer's loss of the options.
        options: the options that it has, with their defaults.
        weights: the input that weighs each token.
        sampled: each datum has the log-probabilities at sampling, too. Otherwise weights may be left out, and are 1.
    """

    choice: Callable[[_Options], LossChoice]
    options: _Options
    weights: str
    sampled: bool = True


_LOSSES: Mapping[str, _Loss] = {
    "cross_entropy": _Loss(lambda _: LossChoice("cross_entropy", weighs_tokens=True), {}, "weights", sampled=False),
    "importance_sampling": _Loss(lambda _: LossChoice("policy_gradient", clip_range=math.inf), {}, "advantages"),
    "ppo": _Loss(
        lambda given: LossChoice("policy_gradient", clip_range=1 - given[_LOW], clip_range_high=given[_HIGH] - 1),
        _RATIOS,
        "advantages",
    ),
    "cispo": _Loss(
        lambda given: LossChoice(
            "policy_gradient", surrogate="weighted", least_weight=given[_LOW], clip_range_high=given[_HIGH] - 1
        ),
        _RATIOS,
        "advantages",
    ),
}


def update_request(passes: Passes, vocabulary_size: int, longest: int) -> UpdateRequest:
    """Return what the trainer is asked for.

    Args:
        passes: what the client asks for.
        vocabulary_size: tokens that the model has an embedding for.
        longest: tokens of the longest sequence.

    Raises:
        RefusedError: a loss, an option or a datum that the service does not take.
    """
    loss = _LOSSES.get(passes.loss)
    if passes.loss == _UNKNOWN_FORMULA:
        raise RefusedError(
            f"loss_fn is {_UNKNOWN_FORMULA}, whose formula is not published. "
            "Use importance_sampling: the recipes take it as loss_fn=importance_sampling"
        )
    if loss is None:
        raise RefusedError(f"loss_fn is {passes.loss!r}; this service has {', '.join(_LOSSES)}")
    if not passes.data:
        raise RefusedError("data is empty; send at least one datum")
    samples = [
        _sample(datum, loss, f"data[{number}]", vocabulary_size, longest) for number, datum in enumerate(passes.data)
    ]
    return UpdateRequest(
        samples=Samples(samples),
        loss=loss.choice(_options(passes.options, loss, passes.loss)),
        temperature=1.0,
        on_policy=False,
        total_tokens=1,  # the loss is the sum over all tokens
        learning_rate=0.0,
        seed=0,
        limits=None,
    )


def _options(given: Mapping[str, float | str], loss: _Loss, name: str) -> dict[str, float]:
    for option, value in given.items():
        if option not in loss.options:
            known = ", ".join(loss.options) or "none"
            raise RefusedError(f"loss_fn_config has {option}, which {name} does not have here; it has {known}")
        if not isinstance(value, float):
            raise RefusedError(f"loss_fn_config[{option}] is {value!r}; it must be a number")
    return {**loss.options, **{option: float(value) for option, value in given.items()}}


def _sample(datum: Datum, loss: _Loss, where: str, vocabulary_size: int, longest: int) -> Sample:
    length = len(datum.tokens)
    if not 1 <= length < longest:
        raise RefusedError(f"{where} has {length:,} tokens; this service takes 1 to {longest - 1:,}")
    targets = _input(datum, "target_tokens", where)
    for name, some in (("model_input", datum.tokens), ("target_tokens", targets)):
        if some.dtype.kind != "i" or some.min() < 0 or some.max() >= vocabulary_size:
            raise RefusedError(f"{where}.{name} must be numbers of tokens, from 0 to {vocabulary_size - 1}")
    known = {"target_tokens", loss.weights, "logprobs"} if loss.sampled else {"target_tokens", loss.weights}
    if unknown := sorted(set(datum.inputs) - known):
        raise RefusedError(f"{where}.loss_fn_inputs has {unknown[0]}; this loss takes {', '.join(sorted(known))}")
    weights = np.ones(length) if not loss.sampled and loss.weights not in datum.inputs else None
    return Sample(
        tokens=np.append(datum.tokens, targets[-1]).astype(np.int64),
        prompt_length=1,
        advantage=_finite(_input(datum, loss.weights, where) if weights is None else weights, where, loss.weights),
        rollout_logprobs=_finite(_input(datum, "logprobs", where), where, "logprobs") if loss.sampled else None,
        targets=targets.astype(np.int64),
    )


def _input(datum: Datum, name: str, where: str) -> np.ndarray[Any, Any]:
    found = datum.inputs.get(name)
    if found is None or len(found) != len(datum.tokens):
        got = "is missing" if found is None else f"has {len(found):,} values"
        raise RefusedError(f"{where}.loss_fn_inputs[{name}] {got}; model_input has {len(datum.tokens):,} tokens")
    return found


def _finite(values: np.ndarray[Any, Any], where: str, name: str) -> np.ndarray[Any, Any]:
    if not np.isfinite(values).all():
        raise RefusedError(f"{where}.loss_fn_inputs[{name}] has values that are not finite")
    return values.astype(np.float32)


def prompt_sample(tokens: Sequence[int]) -> Sample:
    """Return a prompt as a sample whose log-probabilities are those of all tokens but the first."""
    return Sample(np.asarray(tokens, np.int64), prompt_length=1)
