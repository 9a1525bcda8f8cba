"""Where each element of a trainable parameter lies in the adapter as Hugging Face names it, on any tensor-parallel layout.

Megatron fuses q, k and v (interleaved per key-value group), gate and up, and splits everything over the tensor-parallel ranks.
Rather than repeat Megatron-Bridge's rules for each architecture, the layout is read off the bridge itself: parameters filled with
the number of their rank and tensor, of their row and of their column are exported, and where the numbers arrive tells the layout.
That makes importing (which the bridge does not do) the exact inverse of its export.

An example: a rank's fused B has rows [q0, k0, q1, k1]. Filled with its row numbers and exported, the bridge sends q = [0, 2] and
k = [1, 3]. So q's rows are the parameter's rows 0 and 2: to import, q goes to these rows and k to the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

from lorarl_trainer.megatron_lora.model import LoraModel

_EXACT_IN_FLOAT32 = 2**24


@dataclass(frozen=True)
class Piece:
    """`parameter[rows][:, columns]` is `adapter[name][hf_rows][:, hf_columns]`."""

    name: str
    rows: torch.Tensor
    columns: torch.Tensor
    hf_rows: torch.Tensor
    hf_columns: torch.Tensor


class ConflictError(ValueError):
    """Two Hugging Face tensors that are one parameter here (the shared A of a fused `lora` adapter) differ."""


class AdapterLayout:
    """The pieces of every trainable parameter of this rank, and the shapes of the whole adapter."""

    def __init__(self, model: LoraModel) -> None:
        """Read the layout off the bridge (collective: three exports)."""
        self._model = model
        parameters = list(model.parameters.values())
        first = dist.get_rank() * len(parameters)  # this rank's tensors are numbered from here on
        if dist.get_world_size() * len(parameters) >= _EXACT_IN_FLOAT32:
            raise ValueError(f"{dist.get_world_size()} ranks with {len(parameters)} adapter tensors cannot be numbered in float32")
        owners = self._export_numbers([torch.full(p.shape, float(first + i), device=p.device) for i, p in enumerate(parameters)])
        rows = self._export_numbers([torch.arange(p.shape[0], device=p.device).float()[:, None].expand(p.shape) for p in parameters])
        columns = self._export_numbers([torch.arange(p.shape[1], device=p.device).float().expand(p.shape) for p in parameters])
        self.shapes: dict[str, tuple[int, int]] = {name: (t.shape[0], t.shape[1]) for name, t in owners.items()}
        self._pieces: list[list[Piece]] = [[] for _ in parameters]
        for name, owner in owners.items():
            for number in torch.unique(owner).tolist():
                index = int(number) - first
                if 0 <= index < len(parameters):
                    self._pieces[index].append(_piece(name, owner == number, rows[name], columns[name]))

    def scatter(self, adapter: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """Return this rank's share of an adapter, one tensor a trainable parameter, in the parameters' order, on the CPU.

        Args:
            adapter: every tensor of `shapes`, in Hugging Face names, any dtype.

        Raises:
            ConflictError: tensors that have to be one parameter differ.
        """
        shares = []
        for parameter, pieces in zip(self._model.parameters.values(), self._pieces, strict=True):
            share = torch.full(parameter.shape, float("nan"), dtype=adapter[pieces[0].name].dtype)  # NaN: not written yet
            for piece in pieces:
                value = adapter[piece.name][piece.hf_rows][:, piece.hf_columns]
                there = share[piece.rows][:, piece.columns]
                if not torch.equal(torch.where(torch.isnan(there), value, there), value):
                    raise ConflictError(f"{pieces[0].name} and {piece.name} are one tensor in a fused adapter, but differ")
                share[piece.rows[:, None], piece.columns] = value
            shares.append(share)
        return shares

    def gather(self, values: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return values of the trainable parameters' shapes (their gradients, moments, masters) in Hugging Face names (collective)."""
        with self._model.holding(values):
            return {name: tensor.clone() for name, tensor in self._model.export().items()}

    def _export_numbers(self, numbers: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: tensor.cpu() for name, tensor in self.gather([n.contiguous() for n in numbers]).items()}


def _piece(name: str, mine: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> Piece:
    hf_rows, hf_columns = mine.any(1).nonzero().flatten(), mine.any(0).nonzero().flatten()
    block = mine[hf_rows][:, hf_columns]
    piece = Piece(name, rows[hf_rows, hf_columns[0]].long(), columns[hf_rows[0], hf_columns].long(), hf_rows, hf_columns)
    if not (
        block.all()
        and torch.equal(rows[hf_rows][:, hf_columns].long(), piece.rows[:, None].expand(block.shape))
        and torch.equal(columns[hf_rows][:, hf_columns].long(), piece.columns.expand(block.shape))
    ):
        raise ValueError(f"{name} is not made of whole rows and columns of one parameter")
    return piece
