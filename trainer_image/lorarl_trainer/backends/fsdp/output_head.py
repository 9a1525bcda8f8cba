"""What makes logits of hidden states in Transformers' models: more than a product in some of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from lorarl_trainer.errors import InputError


@dataclass(frozen=True)
class OutputHead:
    """Logits are `scale * (weight h + bias)`, capped to -soft_cap .. soft_cap.

    Attributes:
        weight: [V, H].
        bias: [V]; None for none.
        soft_cap: see `kernels.logprobs.token_log_probabilities`; None for none.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None
    scale: float
    soft_cap: float | None

    @classmethod
    def of(cls, model: Any) -> OutputHead:
        """Read the head off a Transformers model and its configuration."""
        layer, config = model.get_output_embeddings(), model.config.get_text_config()
        scale = getattr(config, "logit_scale", None) or 1.0  # Cohere's
        scale /= getattr(config, "logits_scaling", None) or 1.0  # Granite's
        soft_cap = getattr(config, "final_logit_softcapping", None)  # Gemma's
        return cls(layer.weight, getattr(layer, "bias", None), scale, soft_cap)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits, as the model itself would."""
        product = self.scale * torch.nn.functional.linear(hidden, self.weight, self.bias)
        return product if self.soft_cap is None else (product / self.soft_cap).tanh() * self.soft_cap

    def require_same(self, hidden: torch.Tensor, logits: torch.Tensor, model: str) -> None:
        """Refuse a model whose own logits are others. Raises InputError if log-probabilities would be wrong."""
        ours, theirs = self.logits(hidden).float(), logits.float()
        largest = float(theirs.abs().max())
        if not torch.allclose(ours, theirs, rtol=0.0, atol=_ROUNDING[hidden.dtype] * max(largest, 1.0)):
            raise InputError(
                "spec.model.uri",
                f"{model}, which changes its logits in a way that lorarl does not know",
                "a model whose logits are the output layer's product, scaled, or capped as Gemma's",
                "Choose another model.",
            )


_ROUNDING = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""How far the logits of a model may be from ours, as a share of the largest one."""
