"""Means over fresh tokens: those of samples that the newest adapter generated alone.

Shape suffix: N response tokens of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from lorarl_trainer.samples.requests import LOGPROB_DIFFERENCE

OF_FRESH = (LOGPROB_DIFFERENCE, "rollout_kl", "entropy", "kl")
"""Columns that compare policies, or estimate by a policy's own samples."""
_SHARE = "fresh_share"


def of_fresh(columns: Mapping[str, torch.Tensor], fresh_N: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """Return columns of `OF_FRESH`, [N] each, with 0 for other tokens, and the column that counts the fresh ones.

    `fresh_N` says which are; None if all are.
    """
    if fresh_N is None:
        any_column = next(iter(columns.values()))
        return {**columns, _SHARE: torch.ones_like(any_column)}
    own = {name: column_N.masked_fill(~fresh_N, 0.0) for name, column_N in columns.items()}
    return {**own, _SHARE: fresh_N.float()}


def over_fresh(means: Mapping[str, float]) -> dict[str, float]:
    """Return means over all tokens with those of `of_fresh` over fresh tokens; without them if no token is fresh."""
    share = means.get(_SHARE)
    if share is None:
        return dict(means)
    others = {name: mean for name, mean in means.items() if name not in (*OF_FRESH, _SHARE)}
    return others | {name: means[name] / share for name in OF_FRESH if share and name in means}
