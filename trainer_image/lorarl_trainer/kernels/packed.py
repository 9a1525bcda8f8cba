"""Attention over packed sequences with shared prompts: see `samples.packing.Packing`.

Shape suffixes: T tokens of the packing, K keys, A attention heads, G key-value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from lorarl_trainer.devices.transfer import to_device
from lorarl_trainer.kernels.attention import attend, attend_backward
from lorarl_trainer.kernels.gather import Gather
from lorarl_trainer.kernels.segments import Extents
from lorarl_trainer.samples.packing import Packing


@dataclass(frozen=True)
class Segments:
    """A packing's segments on the device.

    Attributes:
        positions: each token's position in its own sequence, [T].
        longest_sequence: tokens of the longest sequence.
        keys: takes the keys of all segments, [K], out of the row's.
        extents: where each segment's queries and keys end.
        earlier: what `before` has made.
    """

    positions: torch.Tensor
    longest_sequence: int
    keys: Gather
    extents: Extents
    earlier: dict[int, Gather] = field(default_factory=dict)

    @classmethod
    def of(cls, packing: Packing, device: torch.device, rows: int | None = None) -> Segments:
        """Bring a packing's segments to the device. Their keys are of so many rows, by default of the packing's."""
        return cls(
            positions=to_device(packing.positions, device),
            longest_sequence=int(packing.positions.max()) + 1,
            keys=Gather(packing.keys, rows or len(packing.tokens), device),
            extents=Extents(
                query_ends=to_device(packing.query_ends, device),
                key_ends=to_device(packing.key_ends, device),
                longest_query=int(np.diff(packing.query_ends).max()),
                longest_key=int(np.diff(packing.key_ends).max()),
            ),
        )

    def before(self, steps: int) -> Gather:
        """Return what takes the row so many tokens before each, in its own sequence, [T]. All layers use the same.

        It takes from the packing's rows and one more after them, which stands for what is before a sequence.
        """
        if steps not in self.earlier:
            rows = self.extents.rows_before(self.keys.index.cpu().numpy(), steps)
            self.earlier[steps] = Gather(rows, len(rows) + 1, self.positions.device)
        return self.earlier[steps]

    def by_sequence(self, make: Callable[[torch.Tensor], torch.Tensor], tokens_T_X: torch.Tensor) -> torch.Tensor:
        """Return what `make` makes of whole sequences, [rows, S, ...], at the places of the packing's tokens, [T, ...].

        A segment's keys are its whole sequence: its prompt, then its own tokens. So the prompt of several completions
        is computed for each of them.
        """
        keys_K_X, sequences = self.keys(tokens_T_X), self.extents.sequences
        made = [
            make(keys_K_X.index_select(0, batch.keys).unflatten(0, (batch.count, -1))).flatten(0, 1)
            for batch in sequences.each
        ]
        return torch.cat(made).index_select(0, sequences.places)


def attend_segments(
    query_T_A_D: torch.Tensor, key_T_G_D: torch.Tensor, value_T_G_D: torch.Tensor, segments: Segments, scale: float
) -> torch.Tensor:
    """Return attention's output, [T, A, D]: every segment's queries over its prompt's keys and its own."""
    output: torch.Tensor = _Attention.apply(query_T_A_D, key_T_G_D, value_T_G_D, segments, scale)
    return output


class _Attention(torch.autograd.Function):
    """Attention over the segments' keys, which are gathered again in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        query_T_A_D: torch.Tensor,
        key_T_G_D: torch.Tensor,
        value_T_G_D: torch.Tensor,
        segments: Segments,
        scale: float,
    ) -> torch.Tensor:
        keys_K_G_D, values_K_G_D = segments.keys.take(key_T_G_D), segments.keys.take(value_T_G_D)
        output_T_A_D, statistics = attend(query_T_A_D, keys_K_G_D, values_K_G_D, segments.extents, scale)
        ctx.segments, ctx.scale = segments, scale
        ctx.save_for_backward(query_T_A_D, key_T_G_D, value_T_G_D, output_T_A_D, *statistics)
        return output_T_A_D

    @staticmethod
    def backward(ctx: Any, by_output_T_A_D: torch.Tensor) -> Any:
        query_T_A_D, key_T_G_D, value_T_G_D, output_T_A_D, *statistics = ctx.saved_tensors
        keys, extents = ctx.segments.keys, ctx.segments.extents
        by_query_T_A_D, by_keys_K_G_D, by_values_K_G_D = attend_backward(
            by_output_T_A_D,
            query_T_A_D,
            keys.take(key_T_G_D),
            keys.take(value_T_G_D),
            output_T_A_D,
            tuple(statistics),
            extents,
            ctx.scale,
        )
        return by_query_T_A_D, keys.summed(by_keys_K_G_D), keys.summed(by_values_K_G_D), None, None
