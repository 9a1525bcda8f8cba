"""How completions and samples travel between the driver and the workers: as a few flat arrays.

Pickling hundreds of small arrays takes longer than a small model's step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lorarl_trainer.samples.fields import Arrays, columns_of, from_arrays, to_arrays
from lorarl_trainer.samples.occupancy import Occupancy
from lorarl_trainer.samples.sample import Completion, Sample


class Completions(tuple[Completion, ...]):
    """Completions that travel flat."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _completions, (to_arrays(self, columns_of(Completion)),)


class Samples(tuple[Sample, ...]):
    """Samples that travel flat."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel flat.

        Raises:
            ValueError: an array has another length than its column says.
        """
        arrays = to_arrays(self, columns_of(Sample))
        _require_lengths(self, arrays)
        return _samples, (arrays,)


def _require_lengths(samples: Sequence[Sample], arrays: Arrays) -> None:
    expected = [sample.lengths for sample in samples]
    for name, column in columns_of(Sample).items():
        found = arrays.get(f"{name}.lengths", np.empty(0))
        right = np.array([lengths[column.per] for lengths in expected[: len(found)]])
        if len(wrong := np.flatnonzero((found >= 0) & (found != right))):
            index = int(wrong[0])
            raise ValueError(f"{name} of sample {index}: found {found[index]} values, expected {right[index]}")


def _completions(arrays: Arrays) -> Completions:
    return Completions(from_arrays(Completion, arrays))


def _samples(arrays: Arrays) -> Samples:
    return Samples(from_arrays(Sample, arrays))


@dataclass(frozen=True)
class CompletionChunk:
    """Completions that ended about the same time, handed over while others are still being generated.

    Attributes:
        numbers: of their requests.
        completions: in the order of `numbers`.
        seconds: by phase since generation began; those of the last chunk are the whole generation's.
        occupancy: of the engine since then.
    """

    numbers: Sequence[int]
    completions: Completions
    seconds: Mapping[str, float]
    occupancy: Occupancy
