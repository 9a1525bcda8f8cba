"""Updates whose loss or gradient is not a finite number: each is withheld, and three in a row stop the run.

One such update is bad luck, of a rare sample or of bf16. Data, sampling and dropout depend on the step alone, so a
retry would meet it again. So the run continues without it.
"""

from __future__ import annotations

import math

from lorarl_trainer.errors import GradientError
from lorarl_trainer.samples.requests import UpdateResult

MOST_IN_A_ROW = 3


def count_withheld(result: UpdateResult, step: int, before: int) -> int:
    """Return how many updates in a row have been withheld, up to and including this one.

    `result`: the update's. The workers withheld it if its loss or the norm of its gradient is infinite or NaN.
    `before`: how many in a row were withheld before it.

    Raises:
        GradientError: it is the third.
    """
    loss, norm = result.metrics["loss"], result.metrics["grad_norm"]
    of_critic = [result.metrics.get(f"critic/{name}", 0.0) for name in ("loss", "grad_norm")]
    if all(map(math.isfinite, (loss, norm, *of_critic))):
        return 0
    if before + 1 >= MOST_IN_A_ROW:
        critic = "" if all(map(math.isfinite, of_critic)) else f"; of the critic {of_critic[0]} and {of_critic[1]}"
        raise GradientError(
            f"step {step}: {before + 1} updates in a row were withheld, because loss or gradient is not finite "
            f"(now loss {loss}, gradient norm {norm}{critic}), expected finite numbers. "
            "None of them changed the adapter, so the last checkpoint is good. "
            "Lower spec.trainer.learningRate, spec.adapter.alpha or spec.algorithm.updatesPerStep."
        )
    return before + 1
