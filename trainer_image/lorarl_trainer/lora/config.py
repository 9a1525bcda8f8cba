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


@dataclass(frozen=True)
class Probe:
    """An adapter of known values, which tells whether an engine applies adapters: `lora.probe` makes it.

    Attributes:
        gain: the largest element of B. 0: the adapter changes nothing.
        family: only modules of this name (q_proj) have B; None for all.
    """

    gain: float
    family: str | None = None
