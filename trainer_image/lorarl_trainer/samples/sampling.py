"""From which distribution tokens are drawn."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lorarl_api.v1alpha1 import RolloutSpec


@dataclass(frozen=True)
class Sampling:
    """The temperature, and which tokens remain possible.

    First the logits are divided by the temperature. Then minP, topK and topP, in this order, make the less probable
    tokens impossible, each on what the one before has left, and the rest is renormalised. What remains are always the
    most probable tokens. So their number is all that the trainer needs to know: see `Completion.kept`.

    Attributes:
        temperature: above 0.
        top_p: the most probable tokens that together have this probability (nucleus sampling, arXiv:1904.09751); 1
            keeps all.
        top_k: so many most probable tokens; 0 keeps all.
        min_p: tokens of at least this share of the most probable token's probability (arXiv:2407.01082); 0 keeps all.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    @classmethod
    def of(cls, rollout: RolloutSpec) -> Sampling:
        """Return a job's."""
        return cls(rollout.temperature, rollout.top_p, rollout.top_k or 0, rollout.min_p)

    @property
    def truncates(self) -> bool:
        """Whether some tokens may be impossible."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0

    @property
    def untruncated(self) -> Sampling:
        """The same temperature, with every token possible."""
        return Sampling(self.temperature)

    def at(self, temperature: float) -> Sampling:
        """The same truncation at another temperature."""
        return replace(self, temperature=temperature)
