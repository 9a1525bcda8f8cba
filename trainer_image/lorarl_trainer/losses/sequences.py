"""Which tokens of a micro-batch belong to one sample. All tokens of a sample are in the same micro-batch.

Shape suffixes: N response tokens of a micro-batch, sample by sample; S samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lorarl_trainer.devices.transfer import to_device


@dataclass(frozen=True)
class Sequences:
    """The samples of a micro-batch.

    Attributes:
        sample_of_N: the index of each token's sample.
        lengths_S: tokens of each sample, float32.
        whole_S: tokens of each sample's episode, float32; None if each is an episode.
    """

    sample_of_N: torch.Tensor
    lengths_S: torch.Tensor
    whole_S: torch.Tensor | None = None

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device, whole: Sequence[int] | None = None) -> Sequences:
        """Return samples of these lengths, of episodes with so many tokens."""
        sample_of_N = np.repeat(np.arange(len(lengths)), lengths)
        lengths_S, whole_S = (
            None if values is None else to_device(np.asarray(values, np.float32), device) for values in (lengths, whole)
        )
        assert lengths_S is not None
        return cls(to_device(sample_of_N, device), lengths_S, whole_S)

    @property
    def lengths_per_token(self) -> torch.Tensor:
        """The length of each token's sample, [N]."""
        return self.lengths_S[self.sample_of_N]

    @property
    def episode_lengths_per_token(self) -> torch.Tensor:
        """The tokens of the episode of each token's sample, [N]."""
        return (self.lengths_S if self.whole_S is None else self.whole_S)[self.sample_of_N]

    def totals(self, values_N: torch.Tensor) -> torch.Tensor:
        """Return each sample's sum, [S]. Unlike `sums`, it adds in the same order every time, also on a GPU."""
        lengths_S = self.lengths_S.long()
        return torch.segment_reduce(values_N, "sum", lengths=lengths_S, unsafe=True)

    def sums(self, values_N: torch.Tensor) -> torch.Tensor:
        """Return each sample's sum, at each of its tokens, [N]."""
        return torch.zeros_like(self.lengths_S).index_add(0, self.sample_of_N, values_N)[self.sample_of_N]

    def means(self, values_N: torch.Tensor) -> torch.Tensor:
        """Return each sample's mean, at each of its tokens, [N]."""
        return self.sums(values_N) / self.lengths_per_token
