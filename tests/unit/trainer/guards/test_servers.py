"""Which server is named at the start, if one does not compute what the trainer does."""

from __future__ import annotations

import numpy as np
import pytest

from lorarl_trainer.errors import RolloutServerError
from lorarl_trainer.guards.servers import require_probe, require_same_base
from lorarl_trainer.samples.agreement import Agreement, AgreementLimits
from lorarl_trainer.servers.origin import Origin

ORIGIN = Origin("spec.rollout.servers", ("http://a", "http://b"), None, 256, "Fix it", "Start them.")
HEALTHY = {"http://a": 3e-6, "http://b": 4e-6}


def found(differences: dict[str, float]) -> dict[str, Agreement]:
    """Servers by how far each is from the trainer, in nats."""
    trainer = np.full(256, -2.0, np.float64)
    return {
        url: Agreement.of(trainer + off, trainer, np.arange(256))  # type: ignore[arg-type]
        for url, off in differences.items()
    }


def test_servers_that_differ_by_rounding_pass() -> None:
    require_same_base(ORIGIN, found(HEALTHY), least=1e-6, largest=1e-3)
    require_probe(ORIGIN, found(HEALTHY), AgreementLimits(mean=1e-5))


@pytest.mark.parametrize("off", [1e-4, 0.5, float("nan")])
def test_the_one_with_another_base_model_is_named_alone(off: float) -> None:
    with pytest.raises(
        RolloutServerError, match="http://c and the trainer do not compute the same with the base"
    ) as no:
        require_same_base(ORIGIN, found({**HEALTHY, "http://c": off}), least=1e-6, largest=1e-3)
    assert "http://a" not in str(no.value) and "Fix it. No step was made" in str(no.value)


def test_if_none_has_the_base_model_all_are_named() -> None:
    with pytest.raises(RolloutServerError, match=r"http://a and .* http://b and"):
        require_same_base(ORIGIN, found({"http://a": 0.5, "http://b": 0.6}), least=1e-6, largest=1e-3)


def test_a_server_that_applies_no_adapter_is_named() -> None:
    with pytest.raises(RolloutServerError, match=r"http://b and .* a probe adapter, which was loaded into it"):
        require_probe(ORIGIN, found({"http://a": 3e-6, "http://b": 0.8}), AgreementLimits(mean=1e-5))
