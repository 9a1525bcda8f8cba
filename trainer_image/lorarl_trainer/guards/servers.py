"""Which of several servers does not compute what the trainer does: asked at the start, by name."""

from __future__ import annotations

from collections.abc import Mapping

from lorarl_trainer.errors import RolloutServerError
from lorarl_trainer.samples.agreement import Agreement, AgreementLimits
from lorarl_trainer.servers.origin import Origin
from lorarl_trainer.servers.proof import differs


def require_same_base(origin: Origin, found: Mapping[str, Agreement], least: float, largest: float) -> None:
    """Compare how well each server agrees with the trainer about the base model: with the one that agrees best.

    Args:
        origin: who started them.
        found: by the server's address.
        least: the noise that the precision has at the least.
        largest: a mean difference that is no rounding, in nats.

    Raises:
        RolloutServerError: one has another base model, or other log-probabilities.
    """
    best = min(found.values(), key=lambda one: one.mean)
    limits = AgreementLimits.from_base(best, least) if best.mean <= largest else AgreementLimits()
    _require(origin, found, limits, "the base model")


def require_probe(origin: Origin, found: Mapping[str, Agreement], limits: AgreementLimits) -> None:
    """Require that each server applies the probe. Raises RolloutServerError if one does not."""
    _require(origin, found, limits, "a probe adapter, which was loaded into it")


def _require(origin: Origin, found: Mapping[str, Agreement], limits: AgreementLimits, what: str) -> None:
    wrong = [differs(url, what, one) for url, one in found.items() if limits.exceeded(one)]
    if wrong:
        raise RolloutServerError(f"{origin.field}: {'; '.join(wrong)}. {origin.if_wrong}. No step was made.")
