"""Where each element of a trainable parameter is in the adapter in Hugging Face names, on any tensor-parallel layout.

Megatron fuses q, k and v (interleaved per key-value group), gate and up, and splits everything over the tensor-parallel
ranks. PEFT keeps each tensor whole. Instead of repeating a backend's rules, the layout is read off its own export:
parameters filled with the number of their rank and tensor, of their row and of their column are exported, and where the
numbers arrive is the layout. So importing is the exact inverse of exporting.

An example: a rank's fused B has rows [q0, k0, q1, k1]. Filled with its row numbers and exported, Megatron-Bridge sends
q = [0, 2] and k = [1, 3]. So q's rows are the parameter's rows 0 and 2: an import puts q there, and k in the others.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist

from lorarl_trainer.backends.model import AdaptedModel
from lorarl_trainer.lora.blocks import Block, rectangles

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
        owners = self.gather([torch.full(p.shape, float(first + i), device=p.device) for i, p in enumerate(parameters)])
        rows = self.gather([_numbers(p, 0) for p in parameters])
        columns = self.gather([_numbers(p, 1) for p in parameters])
        self.shapes: dict[str, tuple[int, ...]] = {name: tuple(t.shape) for name, t in owners.items()}
        self.blocks: dict[tuple[int, int], list[Block]] = {(self._rank, i): [] for i in range(len(parameters))}
        for name, owner in owners.items():
            numbers = (_matrix(of).cpu().numpy() for of in (owner, rows[name], columns[name]))
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
        shares = []
        for index, parameter in enumerate(self._model.parameters.values()):
            blocks = self.blocks[self._rank, index]
            kind = {"dtype": adapter[blocks[0].name].dtype, "device": parameter.device}
            share = torch.full(_matrix(parameter).shape, float("nan"), **kind)  # NaN: not written yet
            for block in blocks:
                value = _matrix(adapter[block.name]).to(parameter.device)[block.hf_rows][:, block.hf_columns]
                there = share[block.rows][:, block.columns]
                if not torch.equal(torch.where(torch.isnan(there), value, there), value):
                    raise ConflictError(
                        f"{blocks[0].name} and {block.name} are one tensor in a fused adapter, but differ"
                    )
                share[block.rows[:, None], block.columns] = value
            shares.append(share.view(parameter.shape))
        return shares

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


def _numbers(parameter: torch.Tensor, dimension: int) -> torch.Tensor:
    """Return a tensor of the parameter's shape that holds each element's row (0) or column (1)."""
    shape = _matrix(parameter).shape
    numbers = torch.arange(shape[dimension], device=parameter.device, dtype=torch.float32)
    return (numbers[:, None] if dimension == 0 else numbers).expand(shape).contiguous().view(parameter.shape)


def _matrix(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with two dimensions: DoRA's row lengths as a column."""
    return tensor[:, None] if tensor.dim() == 1 else tensor
