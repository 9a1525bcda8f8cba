"""The check before the first step, of an engine and a trainer that agree."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lorarl_api.v1alpha1 import RolloutSpec
from lorarl_trainer.errors import PolicyDriftError
from lorarl_trainer.guards.start import check_engine
from lorarl_trainer.lora.config import Probe
from lorarl_trainer.samples.requests import GenerationRequest
from lorarl_trainer.samples.sample import Completion, Sample


class Sure:
    """Workers whose model prefers one token by 10 nats at temperature 1, and a probe lowers that by 40 times its gain.

    Attributes:
        bound: whether a probe has an effect.
    """

    def __init__(self, bound: bool) -> None:
        self.bound = bound
        self._gain, self._version = 0.0, 0

    def _logprob(self, temperature: float) -> float:
        return -float(np.logaddexp(0, -(10 - 40 * self._gain * self.bound) / temperature))

    async def hold_probe(self, probe: Probe | None) -> None:
        self._gain = probe.gain if probe else 0.0

    async def sync(self, version: int, verify: bool) -> None:
        self._version = version

    def lane(self) -> Sure:
        return self

    async def submit(self, requests: Sequence[GenerationRequest], take: Callable[..., None]) -> None:
        logprobs = np.full(2, self._logprob(requests[0].sampling.temperature), np.float32)
        made = Completion(np.array([5, 2]), logprobs, True, self._version)
        take(range(len(requests)), [made] * len(requests))

    async def results(self) -> None:
        """All has been made."""

    async def log_probabilities(self, samples: Sequence[Sample], temperature: float) -> list[Any]:
        return [np.full(2, self._logprob(temperature), np.float32) for _ in samples]


def check(temperature: float, *, bound: bool = True) -> list[str]:
    """Check and return what is reported."""
    told: list[Any] = []
    spec = SimpleNamespace(
        rollout=RolloutSpec(temperature=temperature), on_gpu=False, trainer=SimpleNamespace(seed=0), precision="fp32"
    )
    session: Any = SimpleNamespace(
        spec=spec,
        rollouts=SimpleNamespace(probe_prompts=lambda count: [[7, 8]]),
        workers=Sure(bound),
        progress=SimpleNamespace(emit=told.append),
        families=[],
        servers=None,
    )
    assert asyncio.run(check_engine(session)) is not None
    return [event.text for event in told]


@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.1, 0.01])
def test_a_model_that_is_sure_of_each_token_passes_at_any_temperature(temperature: float) -> None:
    (said,) = check(temperature)
    effect = float(said.rpartition(" ")[2])
    assert said.startswith("vLLM agrees with the trainer") and math.isfinite(effect) and effect > 0


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_a_trainer_without_its_adapter_is_named_at_any_temperature(temperature: float) -> None:
    with pytest.raises(PolicyDriftError, match="bound to no module"):
        check(temperature, bound=False)
