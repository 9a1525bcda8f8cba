"""How a loss corrects for the difference between the engine's policy and the one that is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lorarl_api.v1alpha1.algorithm_options import CorrectionPreset, CorrectionSpec

_NEAR = 0.001
"""How far from 1 the geometric mean of a sequence's ratios may be in verl's presets."""


@dataclass(frozen=True)
class Correction:
    """Truncated and masked importance sampling, by ratios of the trainer's and the engine's probabilities.

    Attributes:
        weights: what multiplies a token's loss: its own ratio, or the product over its sequence; None for nothing.
        max_weight: larger weights are cut to this.
        mask: which ratio decides whether a token trains; geometric is the mean over its sequence; None for all.
        low, high: what that ratio has to be within.
    """

    weights: Literal["token", "sequence"] | None = None
    max_weight: float = 2.0
    mask: Literal["token", "sequence", "geometric"] | None = None
    low: float = 0.5
    high: float = 2.0

    @classmethod
    def of(cls, spec: CorrectionSpec) -> Correction:
        """Return a job's."""
        if spec.preset is not None:
            return PRESETS[spec.preset]
        return cls(spec.weights, spec.max_weight, spec.mask, spec.mask_low, spec.mask_high)

    @property
    def by_sequence(self) -> bool:
        """Whether it depends on which sample a token belongs to."""
        return self.weights == "sequence" or self.mask in ("sequence", "geometric")


PRESETS: Mapping[CorrectionPreset, Correction] = {
    "decoupled_token_is": Correction("token"),
    "decoupled_seq_is": Correction("sequence"),
    "decoupled_seq_is_rs": Correction("sequence", mask="sequence"),
    "decoupled_geo_rs": Correction(mask="geometric", low=1 / (1 + _NEAR), high=1 + _NEAR),
    "decoupled_geo_rs_token_tis": Correction("token", mask="geometric", low=1 / (1 + _NEAR), high=1 + _NEAR),
}
"""By the names that verl uses (docs/algo/rollout_corr.md)."""
