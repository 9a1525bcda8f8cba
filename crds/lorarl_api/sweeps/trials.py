"""The trials of a sweep, with their names. A trial's name does not depend on which others there are."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from lorarl_api.faults import in_yaml
from lorarl_api.load import put
from lorarl_api.v1alpha1 import MAX_NAME

_NO_NAME = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True)
class Trial:
    """A job of the sweep.

    Attributes:
        name: of its job.
        label: the values that are its own, for people: `learningRate=1e-5,seed=0`.
        values: those values by their paths (`spec.trainer.seed`), in order.
    """

    name: str
    label: str
    values: tuple[tuple[str, Any], ...]


def grid(sweep: str, axes: Mapping[str, Sequence[Any]]) -> list[Trial]:
    """Return a trial for each combination of values. `sweep` begins their names; `axes` has values by their path."""
    short = _short_paths(list(axes))
    return [
        _trial(sweep, ",".join(f"{short[path]}={_text(value)}" for path, value in values), values)
        for chosen in itertools.product(*axes.values())
        if (values := tuple(zip(axes, chosen, strict=True)))
    ]


def listed(sweep: str, sets: Sequence[tuple[str | None, Mapping[str, Any]]]) -> list[Trial]:
    """Return a trial for each set of values by their path, with its label; None for a label of its values."""
    trials = []
    for label, values in sets:
        short = _short_paths(list(values))
        usual = ",".join(f"{short[path]}={_text(value)}" for path, value in values.items())
        trials.append(_trial(sweep, label or usual, tuple(values.items())))
    return trials


def twice(trials: Sequence[Trial]) -> list[str]:
    """Return the names that several of the trials would have."""
    return [name for name, count in Counter(trial.name for trial in trials).items() if count > 1]


def spec_of(spec: Mapping[str, Any], trial: Trial) -> dict[str, Any]:
    """Return the spec of a trial's job, from the spec that all trials share.

    Raises:
        ManifestError: a path leads through something that is no mapping.
    """
    document = {"spec": deepcopy(dict(spec))}
    for path, value in trial.values:
        put(document, path, deepcopy(value), path)
    return document["spec"]


def shortened(name: str, most: int) -> str:
    """Return a name of at most so many characters: a longer one ends with a digest in place of its rest."""
    if len(name) <= most:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: most - 1 - len(digest)].rstrip('-')}-{digest}"


def _trial(sweep: str, label: str, values: tuple[tuple[str, Any], ...]) -> Trial:
    return Trial(shortened(f"{sweep}-{_NO_NAME.sub('-', label.lower()).strip('-')}", MAX_NAME), label, values)


def _short_paths(paths: Sequence[str]) -> dict[str, str]:
    """Return the last part of each path, or the whole path where that part is not its own."""
    lasts = [path.rpartition(".")[2] for path in paths]
    return {path: last if lasts.count(last) == 1 else path for path, last in zip(paths, lasts, strict=True)}


def _text(value: Any) -> str:
    """Return a value as people read it. A text stays as it was typed."""
    if isinstance(value, str):
        return value
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else in_yaml(value)
