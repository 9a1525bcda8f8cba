"""How long a step takes on a CPU, roughly: from the arithmetic that it needs and this machine's speed at it."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.devices.host_cpus import host_cpus
from lorarl_trainer.models.model_sizes import ModelSizes

_SHARE_OF_SPEED = 0.6
"""Share of `arithmetic_speed` that a step reaches: measured in the tutorial's job, SmolLM2-135M on two cores."""
_SIZE, _PRODUCTS, _SECONDS = 64, 20, 0.1
"""Matrices so small that one core computes them: where other programs are busy, threads wait for each other.

Products on all cores were measured a hundred times slower on a busy machine than on an idle one.
"""
_OVERHEAD_SECONDS = 0.3
"""What a step takes of the smallest model."""
SHORT = 0.1
"""Share of `rollout.maxResponseTokens` that a short completion has."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step with short completions, and with completions that all reach `rollout.maxResponseTokens`."""

    least: float
    most: float


def step_time(
    spec: LoRARLJobSpec, model: ModelSizes, prompt_tokens: float, speed: float, short: float | None = None
) -> StepTime:
    """Estimate a step. `short`: the tokens of a short completion; by default `SHORT` of the longest.

    A token takes two operations per parameter forward, and as many backward: the base is frozen, so its weights have
    no gradients. A prompt is computed once for all completions of its group.
    """
    prompts, group = spec.rollout.prompts_per_step, spec.algorithm.effective_group_size
    forward = 2.0 * model.parameters(1)

    def seconds(response_tokens: float) -> float:
        trained = prompts * prompt_tokens + prompts * group * response_tokens
        generated = 0.0 if spec.algorithm.about.from_data else trained
        return _OVERHEAD_SECONDS + forward * (generated + 2 * trained) / (speed * _SHARE_OF_SPEED)

    longest = spec.rollout.max_response_tokens
    return StepTime(seconds(SHORT * longest if short is None else min(short, longest)), seconds(longest))


def arithmetic_speed() -> float:
    """Measure the floating-point operations per second of the cores that this process may use, by fp32 matrices."""
    matrix = np.ones((_SIZE, _SIZE), dtype=np.float32)
    result = np.empty_like(matrix)
    best, deadline = 0.0, time.perf_counter() + _SECONDS
    while time.perf_counter() < deadline:
        began = time.perf_counter()
        for _ in range(_PRODUCTS):
            np.dot(matrix, matrix, out=result)
        best = max(best, _PRODUCTS * 2.0 * _SIZE**3 / (time.perf_counter() - began))
    return best * host_cpus()
