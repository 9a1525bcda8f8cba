"""The names of experts where ranks share a layer's experts, and their adapters in Hugging Face names.

Megatron numbers the experts of each rank from 0. Megatron-Bridge 0.6.2 exports their adapters by these numbers, each
rank's own alone. Here they get their numbers in the model, and each rank gets those of all.

With `adapter.experts: sharedOuter`, experts of a layer share parameters: the matrices of their adapters that are on the
side of the hidden state, A of fc1 and B of fc2.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import Any

import torch
import torch.distributed as dist

from lorarl_trainer.backends.megatron.collectives import Ranks
from lorarl_trainer.errors import InputError
from lorarl_trainer.lora.targets import Target

_LOCAL = re.compile(r"(?<=\.local_experts\.)\d+")
_THERE = re.compile(r"(?<=\.experts\.)\d+")
_OUTER = re.compile(r"\.local_experts\.\d+\.(linear_fc1\..*\.linear_in|linear_fc2\..*\.linear_out)\.weight$")
_LAYER = re.compile(r"(?<=\.layers\.)\d+")

type _Shapes = dict[int, list[tuple[str, torch.Size]]]
"""The adapters of a rank's experts, by layer."""


def is_local(name: str) -> bool:
    """Return whether a module or parameter of Megatron's belongs to an expert."""
    return _LOCAL.search(name) is not None


def is_outer(name: str) -> bool:
    """Return whether a parameter of Megatron's is such a matrix of an expert's adapter."""
    return _OUTER.search(name) is not None


def share_outer(model: torch.nn.Module) -> None:
    """Let the experts of each layer have one parameter for each such matrix: the first one's."""
    first: dict[str, Any] = {}
    for name, linear in model.named_modules():
        if is_outer(f"{name}.weight"):
            linear.weight = first.setdefault(_LOCAL.sub("", name), linear).weight


@contextmanager
def by_all_names(model: torch.nn.Module) -> Iterator[None]:
    """Let `named_parameters` have a parameter by all its names: so the bridge finds the adapter of each expert."""
    model.named_parameters = partial(model.named_parameters, remove_duplicate=False)
    try:
        yield
    finally:
        del model.named_parameters


class LocalExperts:
    """The experts of one rank among those of all."""

    def __init__(self, ranks: Ranks, experts: int) -> None:
        """`ranks` share the `experts` of each layer: each has as many, in their order."""
        self._ranks, self._count = ranks, experts // ranks.size
        self._shapes: list[_Shapes] | None = None

    def whole_names(self, names: Iterable[str]) -> Iterator[str]:
        """Yield Megatron's names of all modules of a model, given this rank's, in the model's order."""
        for layer, own in groupby(
            names, key=lambda name: name[: found.start()] if (found := _LOCAL.search(name)) else ""
        ):
            shared = list(own)
            for rank in range(self._ranks.size if layer else 1):
                yield from (self._numbered(_LOCAL, name, rank) for name in shared)

    def in_model(self, name: str) -> str:
        """Return the name in the model of one of this rank's modules or parameters."""
        return self._numbered(_LOCAL, name, self._ranks.rank)

    def here(self, name: str) -> str | None:
        """Return the name on this rank of a module of the model; None if another rank has it."""
        found = _LOCAL.search(name)
        if found is None:
            return name
        rank, number = divmod(int(found[0]), self._count)
        return f"{name[: found.start()]}{number}{name[found.end() :]}" if rank == self._ranks.rank else None

    def require_adapters(self, targets: Sequence[Target]) -> None:
        """Refuse adapters of which a rank has none: it would have nothing to train.

        Raises:
            InputError: naming the field.
        """
        numbers = [_LOCAL.search(target.name) for target in targets]
        owners = {int(number[0]) // self._count for number in numbers if number}
        if None not in numbers and len(owners) < self._ranks.size:
            raise InputError(
                "spec.trainer.expertParallelSize",
                f"{self._ranks.size} for adapters on experts of {len(owners)} of the workers",
                "adapters on each worker, which has some of the experts",
                "Remove it, or let spec.adapter.targetModules name more experts, or layers of attention.",
            )

    def gather(
        self, exported: Iterable[tuple[str, torch.Tensor]], like: torch.Tensor
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors of all ranks, given the bridge's export of this one (collective), a layer at a time.

        `like` has their type and device.
        """
        own: dict[int, list[tuple[str, torch.Tensor]]] = defaultdict(list)
        for name, tensor in exported:
            number = _LAYER.search(name)
            if _THERE.search(name) is None or number is None:
                yield name, tensor
            else:
                own[int(number[0])].append((self._numbered(_THERE, name, self._ranks.rank), tensor))
        if self._shapes is None:
            self._shapes = self._all_shapes({n: [(name, t.shape) for name, t in of] for n, of in own.items()})
        for layer in sorted({layer for shapes in self._shapes for layer in shapes}):
            by_rank = [shapes.get(layer, []) for shapes in self._shapes]
            yield from self._gather_layer([tensor for _, tensor in own.pop(layer, [])], by_rank, like)

    def _gather_layer(
        self, own: Sequence[torch.Tensor], by_rank: Sequence[list[tuple[str, torch.Size]]], like: torch.Tensor
    ) -> Iterator[tuple[str, torch.Tensor]]:
        sizes = [[shape.numel() for _, shape in shapes] for shapes in by_rank]
        row = like.new_zeros(1, max(map(sum, sizes)))
        if own:
            torch.cat([tensor.flatten() for tensor in own], out=row[0, : sum(sizes[self._ranks.rank])])
        for values, shapes, counts in zip(self._ranks.gather(row), by_rank, sizes, strict=True):
            parts = values[: sum(counts)].split(counts)
            yield from ((name, part.view(shape)) for (name, shape), part in zip(shapes, parts, strict=True))

    def _all_shapes(self, own: _Shapes) -> list[_Shapes]:
        found: list[_Shapes] = [{}] * self._ranks.size
        dist.all_gather_object(found, own, group=self._ranks.group)
        return found

    def _numbered(self, number: re.Pattern[str], name: str, rank: int) -> str:
        """Return a name with the number in the model of an expert that has this number on a rank."""
        return number.sub(lambda local: str(rank * self._count + int(local[0])), name)
