"""What an adapter is, apart from its weights."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AdapterConfig:
    """The numbers that travel with an adapter.

    Attributes:
        rank: rows of A and columns of B.
        alpha: numerator of the scale.
    """

    rank: int
    alpha: int

    @property
    def scale(self) -> float:
        """The factor of B A x (E. Hu et al., "LoRA", arXiv:2106.09685, section 4.1)."""
        return self.alpha / self.rank
