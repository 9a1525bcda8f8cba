"""Where each element of a trainable parameter is in the adapter in Hugging Face names, on any tensor-parallel layout.

Megatron fuses q, k and v (interleaved per key-value group), gate and up, and splits everything over the tensor-parallel
ranks. PEFT keeps each tensor whole. Instead of repeating a backend's rules, the layout is read off its own export:
parameters filled with the number of their rank and tensor, of their row and of their column are exported, and where the
numbers arrive is the layout. So importing is the exact inverse of exporting.

An example: a rank's fused B has rows [q0, k0, q1, k1]. Filled with its row numbers and exported, Megatron-Bridge sends
q = [0, 2] and k = [1, 3]. So q's rows are the parameter's rows 0 and 2: an import puts q there, and k in the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

from lorarl_trainer.backends.model import AdaptedModel
from lorarl_trainer.devices.transfer import from_host
from lorarl_trainer.lora.blocks import Block, Numbers, as_slice, rectangles
from lorarl_trainer.lora.numbered import column_numbers, on_host, owner_numbers, row_numbers, split

_EXACT_IN_FLOAT32 = 2**24


class ConflictError(ValueError):
    """Two Hugging Face tensors that are one parameter here (the shared A of a fused `lora` adapter) differ."""


class AdapterLayout:
    """Where the parameters of this rank and of those that share its model are in the adapter.

    Attributes:
        shapes: the shapes of the whole adapter's tensors, by Hugging Face name.
        blocks: what each parameter holds of the adapter, by (rank, index among the rank's parameters). If several ranks
            hold the same tensor, it counts as one rank's.
    """

    def __init__(self, model: AdaptedModel) -> None:
        """Read the layout off the model (collective: three exports)."""
        self._model = model
        parameters = list(model.parameters.values())
        self._rank, most = dist.get_rank(), torch.tensor(len(parameters), device=model.device)
        # A rank may have no expert with an adapter.
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        count = int(most)
        if dist.get_world_size() * count >= _EXACT_IN_FLOAT32:
            raise ValueError(
                f"{dist.get_world_size()} ranks with {count} adapter tensors cannot be numbered in float32"
            )
        first = 1 + self._rank * count  # this rank's tensors are numbered from here on
        shapes = [parameter.shape for parameter in parameters]
        owners = self._arrived(owner_numbers(shapes, first, model.device), shapes)
        rows = self._arrived(row_numbers(shapes, model.device), shapes)
        columns = self._arrived(column_numbers(shapes, model.device), shapes)
        self.shapes: dict[str, tuple[int, ...]] = {name: array.shape for name, array in owners.items()}
        self.blocks: dict[tuple[int, int], list[Block]] = {(self._rank, i): [] for i in range(len(parameters))}
        for name, owner in owners.items():
            numbers = (_matrix(of) for of in (owner, rows[name], columns[name]))
            try:
                for number, found in rectangles(*numbers):
                    block = Block(name, found.there_rows, found.there_columns, found.here_rows, found.here_columns)
                    self.blocks.setdefault(divmod(number - 1, count), []).append(block)
            except ValueError as error:
                raise ValueError(f"{name} is not made of whole rows and columns of one parameter") from error

    def scatter(self, adapter: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """Return this rank's share of an adapter: one tensor per trainable parameter, in their order, on their device.

        Args:
            adapter: every tensor of `shapes`, in Hugging Face names, any dtype. Picking rows and columns takes a CPU
                seconds, and a GPU next to no time.

        Raises:
            ConflictError: tensors that must be one parameter differ.
        """
        values, shares = _moved(adapter, self._model.device), []
        for index, parameter in enumerate(self._model.parameters.values()):
            blocks = self.blocks[self._rank, index]
            share = self._share(parameter, blocks, values)
            shares.append(share.clone() if share is adapter[blocks[0].name] else share)
        return shares

    def _share(
        self, parameter: torch.Tensor, blocks: Sequence[Block], values: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        first = values[blocks[0].name]
        if len(blocks) == 1 and first.shape == parameter.shape and _is_all_of(blocks[0], _matrix(first)):
            return first
        share = torch.full(_matrix(parameter).shape, float("nan"), dtype=first.dtype, device=first.device)
        for block in blocks:  # NaN: not written yet
            value = _matrix(values[block.name])[block.hf_rows][:, block.hf_columns]
            there = share[block.rows][:, block.columns]
            if not torch.equal(torch.where(torch.isnan(there), value, there), value):
                raise ConflictError(f"{blocks[0].name} and {block.name} are one tensor in a fused adapter, but differ")
            share[block.rows[:, None], block.columns] = value
        return share.view(parameter.shape)

    def _arrived(self, numbers: torch.Tensor, shapes: Sequence[torch.Size]) -> dict[str, Numbers]:
        """Return the numbers that each element of the adapter gets, given those of all parameters (collective)."""
        exported = self.gather(split(numbers, shapes))
        return dict(zip(exported, on_host(list(exported.values())), strict=True))

    def gather(self, values: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return values of the trainable parameters' shapes, as moments, in Hugging Face names (collective).

        They may be in the values' own storage.
        """
        with self._model.holding(values):
            return self._model.export()

    def help_gather(self, values: list[torch.Tensor]) -> None:
        """Take part in the `gather` of a rank that shares this one's model, and keep nothing of it (collective)."""
        with self._model.holding(values):
            self._model.help_export()


def _matrix[T: (torch.Tensor, Numbers)](values: T) -> T:
    """Return values with two dimensions: DoRA's row lengths as a column."""
    return values[:, None] if values.ndim == 1 else values


def _is_all_of(block: Block, matrix: torch.Tensor) -> bool:
    """Return whether a block takes a matrix as it is."""
    height, width = matrix.shape
    whole = [(block.rows, height), (block.hf_rows, height), (block.columns, width), (block.hf_columns, width)]
    return all(as_slice(indices) == slice(0, length) for indices, length in whole)


def _moved(adapter: Mapping[str, torch.Tensor], device: torch.device) -> Mapping[str, torch.Tensor]:
    """Return an adapter's tensors on a device. They go in one transfer: waiting for each would take longer."""
    by_type: dict[tuple[torch.dtype, torch.device], list[str]] = {}
    for name, tensor in adapter.items():
        by_type.setdefault((tensor.dtype, tensor.device), []).append(name)
    moved = dict(adapter)
    for (_, where), names in by_type.items():
        if where.type != device.type:
            tensors = [adapter[name] for name in names]
            flat = from_host(tensors, device)
            moved |= zip(names, split(flat, [tensor.shape for tensor in tensors]), strict=True)
    return moved
