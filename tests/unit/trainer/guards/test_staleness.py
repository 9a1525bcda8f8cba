"""No sample is trained that is older than the manifest lets it be, whatever a source of samples hands over."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from lorarl_trainer.errors import StaleAdapterError
from lorarl_trainer.guards.staleness import require_staleness
from lorarl_trainer.samples.sample import Sample


def by(versions: Sequence[int | None]) -> list[Sample]:
    return [Sample(np.arange(3), 1, version=version) for version in versions]


def test_samples_within_the_bound_are_counted() -> None:
    assert require_staleness(by([7, 8, 9, 9]), 9, 2) == {"staleness/mean": 0.75, "staleness/max": 2.0}


@pytest.mark.parametrize(("versions", "most"), [([9, 6], 2), ([8], 0), ([9, 10], 2)], ids=["old", "lockstep", "future"])
def test_a_sample_beyond_the_bound_stops_the_step(versions: list[int], most: int) -> None:
    with pytest.raises(StaleAdapterError, match=rf"expected {9 - most} to 9 \(spec.rollout.maxStaleness: {most}\)"):
        require_staleness(by(versions), 9, most)


def test_what_is_not_generated_ahead_has_no_such_metrics() -> None:
    assert (
        require_staleness(by([2, 9]), 9, None)
        == require_staleness(by([9, 9]), 9, 0)
        == require_staleness(by([None]), 9, 0)
        == {}
    )
