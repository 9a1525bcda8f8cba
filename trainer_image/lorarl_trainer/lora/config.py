"""What an adapter is, apart from its weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from lorarl_api.v1alpha1 import AdapterSpec
from lorarl_trainer.lora.experts import is_expert, of_all_experts, outer_matrix


@dataclass(frozen=True)
class AdapterConfig:
    """The numbers that travel with an adapter.

    Attributes:
        rank: rows of A and columns of B.
        alpha: numerator of the scale.
        rslora: the scale's denominator is the rank's square root.
        dora: the adapter also has the length of each row of the adapted weights.
        expert_rank: rows of A and columns of B of each expert's layers, at most `rank`; None for a model without
            experts. The scale is the same.
        shares_outer: the experts of a layer share the matrix on the side of the hidden state.
    """

    rank: int
    alpha: int
    rslora: bool = False
    dora: bool = False
    expert_rank: int | None = None
    shares_outer: bool = False

    @classmethod
    def of(cls, adapter: AdapterSpec, expert_rank: int | None) -> AdapterConfig:
        """Return those of a manifest; `expert_rank` may follow from the model."""
        return cls(adapter.rank, adapter.alpha, adapter.rslora, adapter.dora, expert_rank, adapter.shares_outer)

    def owner(self, layer: str, matrix: Literal["A", "B"]) -> str:
        """Return whose matrix a layer's is: its own, or that of all experts."""
        shared = self.shares_outer and is_expert(layer) and outer_matrix(layer) == matrix
        return of_all_experts(layer) if shared else layer

    @property
    def scale(self) -> float:
        """The factor of B A x (E. Hu et al., "LoRA", arXiv:2106.09685, section 4.1).

        With `rslora`: D. Kalajdzievski, "A Rank Stabilization Scaling Factor for Fine-Tuning with LoRA",
        arXiv:2312.03732, section 3.
        """
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)


def adapter_kind(adapter: AdapterSpec) -> str:
    """Return a manifest's kind of adapter for people: canonical_lora, canonical_lora with rsLoRA."""
    more = [name for name, on in (("rsLoRA", adapter.rslora), ("DoRA", adapter.dora)) if on]
    return f"{adapter.type} with {' and '.join(more)}" if more else adapter.type


@dataclass(frozen=True)
class Probe:
    """An adapter of known values, which shows whether an engine applies adapters: `lora.probe` makes it.

    Attributes:
        gain: the largest element of B. 0: the adapter changes nothing.
        family: only modules of this name (q_proj) have B; None for all.
    """

    gain: float
    family: str | None = None
