"""How much a first run does: as much as this machine measures in some minutes. Pure, but for the machine's speed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.models.model_sizes import ModelSizes
from lorarl_trainer.planning.duration import step_time

LONGEST_SECONDS, LONGEST_FROM_DATA_SECONDS = 330.0, 120.0
"""What the steps of a first run may take on a CPU, by a reward and from answers. One of each fits into ten minutes,
with their starts and evaluations."""


@dataclass(frozen=True)
class FirstRun:
    """The size of a run.

    Attributes:
        prompts: rows per step.
        group: completions per prompt; for grpo.
        response: longest completion or answer, in tokens.
        seconds: what the steps take at most here; None if that is not known.
    """

    prompts: int
    group: int
    response: int
    steps: int
    seconds: float | None = None

    @property
    def every(self) -> int:
        """Steps between evaluations, and between checkpoints: two or more a run, so that a curve has points.

        On a CPU, an evaluation of a hundred rows takes as long as two steps, so there are no more of them.
        """
        half = max(1, self.steps // 2)
        return half if self.seconds is not None else min(10, half)

    @property
    def duration(self) -> str:
        """The comment beside the number of steps."""
        if self.seconds is None:
            return "the dry run estimates the time"
        if self.seconds > LONGEST_SECONDS:
            return f"about {self.seconds / 60:.0f} minutes here at most: a smaller model is faster"
        minutes = max(1, round(self.seconds / 60))
        return f"about {minutes} minute{'s' * (minutes > 1)} here at most; more steps learn more"


USUAL = FirstRun(8, 8, 64, 20)
_LEAST_GENERATED = 64
"""A base model writes more than the answer, and with the limit at the answer it is taught to leave parts out."""
_GENERATED = ((8, 8, 50), (8, 8, 20), (4, 8, 20), (4, 8, 10), (4, 4, 10), (4, 4, 5))
_FROM_DATA = ((32, 1, 50), (16, 1, 50), (16, 1, 20), (8, 1, 20), (8, 1, 10), (4, 1, 5))
"""Sizes of a run on a CPU: prompts, completions of each, steps. The largest is first."""


def usual_run(*, from_data: bool, on_gpu: bool, answer_tokens: int) -> FirstRun:
    """Return the size of a run on a GPU, or with a model whose size is not known here."""
    usual = 512 if on_gpu else _LEAST_GENERATED
    response = max(_least(answer_tokens, from_data=from_data), usual if not from_data or not answer_tokens else 0)
    return FirstRun(32 if from_data else 8, 1 if from_data else 8, response, 200 if on_gpu else 20)


def first_run(
    spec_of: Callable[[FirstRun], LoRARLJobSpec],
    sizes: ModelSizes,
    speed: float,
    *,
    from_data: bool,
    prompt_tokens: float,
    answer_tokens: int,
) -> FirstRun:
    """Return the largest run that a CPU ends in time, and otherwise the smallest one.

    Long completions are given up first, but never below twice the longest answer; then steps, then completions.

    `from_data`: whether the rows' answers are learned, and nothing is generated. `answer_tokens`: of the longest
    answer; 0 if that is not known.
    """
    least = _least(answer_tokens, from_data=from_data)
    longest = LONGEST_FROM_DATA_SECONDS if from_data else LONGEST_SECONDS
    limits = sorted({max(least, n) for n in ((64, 32, 16) if from_data else (128, 64))}, reverse=True)
    limits = [least] if from_data and answer_tokens else limits
    found: FirstRun | None = None
    for prompts, group, steps in _FROM_DATA if from_data else _GENERATED:
        for response in limits:
            size = FirstRun(prompts, group, response, steps)
            found = replace(size, seconds=steps * step_time(spec_of(size), sizes, prompt_tokens, speed).most)
            if found.seconds is not None and found.seconds <= longest:
                return found
    assert found is not None, "there are sizes"
    return found


def _least(answer_tokens: int, *, from_data: bool) -> int:
    """Return the lowest limit for answers of so many tokens: they fit, and what is generated has as much room again."""
    return _fitting(answer_tokens) if from_data else max(_LEAST_GENERATED, _fitting(2 * answer_tokens))


def _fitting(answer_tokens: int) -> int:
    """Return a limit that answers fit into: a power of two, 16 to 512."""
    return min(512, max(16, 1 << max(0, answer_tokens - 1).bit_length()))
