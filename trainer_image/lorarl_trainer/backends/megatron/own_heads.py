"""Which heads are a rank's own where there are fewer key-value heads than tensor-parallel ranks.

Megatron splits the rows of linear_qkv, which are interleaved by key-value group, evenly over the ranks, and so do the
adapters of Megatron-Bridge. With fewer groups than ranks, such a share is not made of a rank's heads. Its own are as in
vLLM: its part of the queries, and the key and value of their group, which several ranks compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lorarl_trainer.backends.megatron.collectives import Ranks

WHOLE = ""
"""The name of all of linear_qkv among its parts."""


@dataclass(frozen=True)
class OwnHeads:
    """A rank's own heads.

    Attributes:
        rows: their rows in linear_qkv (`WHOLE`), q_proj, k_proj and v_proj ("q", "k", "v"), each whole.
    """

    rows: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, config: Any, ranks: Ranks) -> OwnHeads | None:
        """Return those of this rank; None if a rank's share of linear_qkv is its own heads.

        `config`: Megatron's. Its number of attention heads is a multiple of the ranks, and the ranks are one of the
        key-value heads.
        """
        groups, size = config.num_query_groups, config.kv_channels
        if groups >= ranks.size:
            return None
        in_group, sharing = config.num_attention_heads // groups, ranks.size // groups
        own, group, place = config.num_attention_heads // ranks.size, ranks.rank // sharing, ranks.rank % sharing
        heads = {
            WHOLE: group * (in_group + 2) + np.array([*range(place * own, (place + 1) * own), in_group, in_group + 1]),
            "q": np.arange(ranks.rank * own, (ranks.rank + 1) * own),
            "k": np.array([group]),
            "v": np.array([group]),
        }
        return cls({part: (size * of[:, None] + np.arange(size)).ravel() for part, of in heads.items()})

    def take(self, part: str, whole: torch.Tensor) -> torch.Tensor:
        """Return a rank's own rows of a part, given all: differentiable."""
        return whole.index_select(0, torch.from_numpy(self.rows[part]).to(whole.device))
