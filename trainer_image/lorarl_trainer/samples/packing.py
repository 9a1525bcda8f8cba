"""Which sequences share a forward pass, and how they are laid out. A prompt of several completions is computed once.

Pure functions on numpy arrays.
Shape suffixes: T tokens of a packing, N trained tokens whose log-probabilities are wanted, K keys of all queries.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lorarl_trainer.samples.arrays import Ints
from lorarl_trainer.samples.routing import Routing, example_of, is_known, rows_of
from lorarl_trainer.samples.sample import Sample

_EVEN = 1.05
"""The heaviest share may have this many times the mean load before samples of one prompt are separated."""


@dataclass(frozen=True)
class Packing:
    """Samples in a single row, without padding between them.

    The row consists of segments, in each of which queries are consecutive tokens: a prompt, then each of its
    completions. A prompt with one completion is one segment with it. A segment's keys are its prompt's, then its own;
    query i of L sees all but the last L - 1 - i of them (causal, aligned at the end). A response's last token predicts
    nothing that is wanted, and is left out.

    Attributes:
        tokens: the row, [T].
        positions: each token's position in its own sequence, [T]: a completion continues where its prompt ends.
        query_ends, key_ends: where each segment's queries end in the row and its keys in `keys`, from 0 on,
            [segments + 1], int32.
        keys: the index in the row of every key, [K].
        predictors: the index in the row that predicts each trained token, sample by sample, [N].
        targets: those tokens, [N].
        routing: the experts of each token, [T, layers, experts of a token]; None if they are not known.
        routed: whether they are known of every token that is a sample's.
    """

    tokens: Ints
    positions: Ints
    query_ends: np.ndarray
    key_ends: np.ndarray
    keys: Ints
    predictors: Ints
    targets: Ints
    routing: Routing | None = None
    routed: bool = False


def pack(samples: Sequence[Sample], multiple: int = 1) -> Packing:
    """Lay samples out in one row. Unused tokens fill it up to a multiple of `multiple`."""
    row, none = _Row(samples), np.empty(0, np.int64)
    predictors: list[Ints] = [none] * len(samples)
    for group in prompt_groups(samples):
        first = samples[group[0]]
        prompt = first.prompt_length
        if len(group) == 1:
            start = row.append(first, 0, len(first.tokens) - 1, seen_before=none)
            predictors[group[0]] = np.arange(start + prompt - 1, row.length)
            continue
        start = row.append(first, 0, prompt, seen_before=none)
        seen = np.arange(start, row.length)
        for index in group:
            start = row.append(samples[index], prompt, len(samples[index].tokens) - 1, seen_before=seen)
            predictors[index] = np.concatenate([seen[-1:], np.arange(start, row.length)])
    unused = -row.length % multiple
    row.append(Sample(np.zeros(unused, np.int64), 0), 0, unused, seen_before=none)
    return Packing(
        tokens=np.concatenate(row.tokens),
        positions=np.concatenate(row.positions),
        query_ends=_ends([len(tokens) for tokens in row.tokens]),
        key_ends=_ends([len(keys) for keys in row.keys]),
        keys=np.concatenate(row.keys),
        predictors=np.concatenate([sample.of_trained(of) for sample, of in zip(samples, predictors, strict=True)]),
        targets=np.concatenate([sample.trained_targets for sample in samples]),
        routing=np.concatenate(row.routing) if row.routing else None,
        routed=all(is_known(sample.routing) for sample in samples),
    )


def prompt_groups(samples: Sequence[Sample]) -> list[list[int]]:
    """Return the indices of each distinct prompt's samples, prompts in the order in which they first appear."""
    groups: dict[bytes, list[int]] = {}
    for index, sample in enumerate(samples):
        groups.setdefault(np.asarray(sample.tokens[: sample.prompt_length], np.int64).tobytes(), []).append(index)
    return list(groups.values())


def packed_micro_batches(
    samples: Sequence[Sample], token_budget: int, key_budget: int | None = None
) -> list[list[int]]:
    """Group samples so that no packing has more than so many tokens and keys; a longer sequence stands alone.

    Samples of one prompt stay together if they fit, and pairs always do. The largest groups come first, each in the
    first micro-batch with room. Deterministic.
    """
    budget = Load(token_budget, sys.maxsize if key_budget is None else key_budget)
    prompts = prompt_groups(samples)
    alone = {group[0] for group in prompts if len(group) == 1}
    groups = [part for group in prompts for part in _parts_within(samples, group, budget)]
    groups.sort(key=lambda group: (-packed_length(samples, group), group))
    batches: list[list[int]] = []
    loads: list[Load] = []
    for group in groups:
        load = packed_load(samples, group, alone=group[0] in alone)  # parts of one prompt may meet again
        place = next((i for i, there in enumerate(loads) if there.plus(load).is_within(budget)), None)
        if place is None:
            batches.append(group)
            loads.append(load)
        else:
            batches[place] = batches[place] + group
            loads[place] = loads[place].plus(load)
    return batches


def padded_micro_batches(
    lengths: Sequence[int], token_budget: int, together: Sequence[Sequence[int]] | None = None
) -> list[list[int]]:
    """Group sequences so that no padded batch has more than `token_budget` tokens; a longer sequence stands alone.

    Sequences of similar length share a batch, so little is padding. Those that belong `together` share one in any
    case. Deterministic.
    """
    wholes = [[index] for index in range(len(lengths))] if together is None else together
    longest = [max(lengths[index] for index in whole) for whole in wholes]
    groups: list[list[int]] = []
    first = 0  # what has the longest of a group, which gives the padded length
    for number in sorted(range(len(wholes)), key=lambda i: (-longest[i], i)):
        whole = wholes[number]
        if groups and longest[first] * (len(groups[-1]) + len(whole)) <= token_budget:
            groups[-1].extend(whole)
        else:
            groups.append(list(whole))
            first = number
    return groups


def units(samples: Sequence[Sample], indices: Sequence[int]) -> list[list[int]]:
    """Return the indices of samples that stay together: those of each pair, or else each by itself; in their order."""
    found: dict[tuple[str, int], list[int]] = {}
    for index in indices:
        pair = samples[index].pair
        found.setdefault(("sample", index) if pair is None else ("pair", pair), []).append(index)
    return list(found.values())


def split_evenly(samples: Sequence[Sample], parts: int) -> list[list[int]]:
    """Deal samples out to data-parallel workers so that each gets about the same number of packed tokens.

    Samples of one prompt stay together, so that it is computed once, unless the shares would be uneven: then the
    largest groups are halved, but no pair is. Deterministic.
    """
    groups = prompt_groups(samples)
    while True:
        groups.sort(key=lambda group: (-packed_length(samples, group), group))
        shares: list[list[int]] = [[] for _ in range(parts)]
        loads = [0] * parts
        for group in groups:
            lightest = loads.index(min(loads))
            shares[lightest].extend(group)
            loads[lightest] += packed_length(samples, group)
        most = max((len(group) for group in groups if len(units(samples, group)) > 1), default=0)
        if most <= 1 or max(loads) * parts <= _EVEN * sum(loads):
            return [sorted(share) for share in shares]
        groups = [half for group in groups for half in (_halves(samples, group) if len(group) == most else [group])]


def packed_length(samples: Sequence[Sample], group: Sequence[int]) -> int:
    """Return how many tokens samples of one prompt take: the prompt once, and each response."""
    return samples[group[0]].prompt_length + sum(samples[index].response_length for index in group)


class Load(NamedTuple):
    """What a packing takes: tokens, and keys of all its queries."""

    tokens: int
    keys: int

    def plus(self, other: Load) -> Load:
        """Return the load of both together."""
        return Load(self.tokens + other.tokens, self.keys + other.keys)

    def is_within(self, budget: Load) -> bool:
        """Return whether neither is more than the budget's."""
        return self.tokens <= budget.tokens and self.keys <= budget.keys


def packed_load(samples: Sequence[Sample], group: Sequence[int], *, alone: bool = False) -> Load:
    """Return the most that samples of one prompt take. Each completion has its prompt's keys besides its own.

    A completion that is `alone` with its prompt is one segment with it.
    """
    tokens, prompt = packed_length(samples, group), samples[group[0]].prompt_length
    return Load(tokens, tokens if alone else tokens + len(group) * prompt)


class _Row:
    """A row of tokens that grows segment by segment."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        """Begin a row for these samples: if the experts of any are known, it has experts."""
        self.length = 0
        self.tokens: list[Ints] = []
        self.positions: list[Ints] = []
        self.keys: list[Ints] = []
        self.routing: list[Routing] = []
        self._like = example_of([sample.routing for sample in samples])

    def append(self, sample: Sample, first: int, last: int, seen_before: Ints) -> int:
        """Add a sample's tokens from `first` until before `last` as a segment, if any; return where it starts."""
        start = self.length
        if last > first:
            self.length += last - first
            self.tokens.append(np.asarray(sample.tokens[first:last], np.int64))
            self.positions.append(np.arange(first, last))
            self.keys.append(np.concatenate([seen_before, np.arange(start, self.length)]))
            if self._like is not None:
                self.routing.append(rows_of(sample.routing, self._like, first, last))
        return start


def _parts_within(samples: Sequence[Sample], group: list[int], budget: Load) -> list[list[int]]:
    """Return the samples of one prompt, in order, in parts that fit the budget."""
    parts: list[list[int]] = []
    for unit in units(samples, group):
        if parts and packed_load(samples, [*parts[-1], *unit]).is_within(budget):
            parts[-1].extend(unit)
        else:
            parts.append(unit)
    return parts


def _halves(samples: Sequence[Sample], group: list[int]) -> list[list[int]]:
    parts = units(samples, group)
    middle = (len(parts) + 1) // 2
    return [half for part in (parts[:middle], parts[middle:]) if (half := [index for unit in part for index in unit])]


def _ends(lengths: Sequence[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
