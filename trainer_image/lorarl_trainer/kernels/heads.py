"""What the plain operations and the Triton kernels of attention both take: rotary angles, and where heads are.

Shape suffixes as in `operations`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

Angles = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines of each token's rotary angles, [T, D / 2], float32."""


@dataclass(frozen=True)
class Heads:
    """Where the heads of one kind are among the columns of Megatron's linear_qkv: each group's queries, key, value.

    Attributes:
        count: number of heads.
        in_group: how many of them a group has.
        first: the column of the first one within a group.
        group_width: columns of a group.
        size: columns of a head, D.
    """

    count: int
    in_group: int
    first: int
    group_width: int
    size: int

    def of(self, qkv_T_O: torch.Tensor) -> torch.Tensor:
        """Return these heads as a view, [T, groups, in_group, D]."""
        groups_T_N_W = qkv_T_O.view(qkv_T_O.shape[0], -1, self.group_width)
        part = groups_T_N_W[:, :, self.first : self.first + self.in_group * self.size]
        return part.unflatten(2, (self.in_group, self.size))
