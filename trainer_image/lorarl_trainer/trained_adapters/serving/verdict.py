"""Does a server apply an adapter? Judged by log-probabilities of the same tokens, of two programs. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lorarl_trainer.samples.agreement import Agreement, AgreementLimits
from lorarl_trainer.samples.arrays import Floats

_MOST_NOISE = 0.5
"""On the base alone, in nats: more is no rounding. Healthy: 1e-5 in fp32; 0.01 to 0.11 in bf16."""
_FP32, _LEAST_NOISE = 1e-4, {"fp32": 1e-4, "bf16": 0.03}
"""Programs that are closer than this on the base compute in fp32. Rounding in relation to tokens' uncertainty."""
_ROUNDING = 0.03
"""The share of an adapter's effect that may be lost to rounding. Healthy: up to 0.01 in bf16."""


@dataclass(frozen=True)
class Measured:
    """Log-probabilities of the recorded tokens by one program, [T] each: of the base alone, and with the adapter."""

    base_T: Floats
    adapter_T: Floats

    @property
    def effect(self) -> float:
        """How much the adapter changes them, in nats on average."""
        return _mean(self.adapter_T - self.base_T)


@dataclass(frozen=True)
class Verdict:
    """What a comparison says.

    Attributes:
        fault: why the adapter must not be served; None if it may.
        said: the numbers, for the user.
    """

    fault: str | None
    said: str


def compare(expected: Measured, served: Measured) -> Verdict:
    """Compare a server's numbers with those of transformers and PEFT.

    The base model alone shows how far apart the two programs are by rounding. If an adapter's effect is smaller than
    that, other adapters would look like it: then the server's numbers only have to change at all.
    """
    positions_T = np.arange(len(expected.base_T))
    base = Agreement.of(served.base_T, expected.base_T, positions_T)
    adapter = Agreement.of(served.adapter_T, expected.adapter_T, positions_T)
    effect = expected.effect
    said = (
        f"log-probabilities change by {effect:.2g} nats, and differ by {adapter.mean:.1e} from those of transformers "
        f"and PEFT (base alone: {base.mean:.1e})"
    )
    if not all(np.isfinite(part).all() for one in (expected, served) for part in (one.base_T, one.adapter_T)):
        return Verdict("its log-probabilities are not all finite", said)
    if base.mean > _MOST_NOISE:
        return Verdict(f"the server has another base model, or computes it otherwise: {said}", said)
    if effect == 0.0:
        return Verdict("it changes nothing: in transformers and PEFT the base model answers the same without it", said)
    if served.effect == 0.0:
        return Verdict("the server does not apply it: log-probabilities are the base model's", said)
    least = _LEAST_NOISE["fp32" if base.mean < _FP32 else "bf16"]
    if AgreementLimits.from_base(base, least).for_probe(_ROUNDING * effect).exceeded(adapter):
        return Verdict(f"the server applies something else: {said}", said)
    return Verdict(None, said if effect > adapter.mean else f"{said}; an effect this small shows no more")


def _mean(differences_T: Floats) -> float:
    return float(np.abs(differences_T.astype(np.float64)).mean())
