"""The samples of one forward pass on the device: packed in one row, or in padded rows.

Shape suffixes: B rows of S tokens, N response tokens, sample by sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from lorarl_trainer.devices.transfer import to_device
from lorarl_trainer.kernels.gather import Gather
from lorarl_trainer.kernels.packed import Segments
from lorarl_trainer.samples.context import share_of
from lorarl_trainer.samples.packing import pack, packed_micro_batches, padded_micro_batches, units
from lorarl_trainer.samples.routing import Routing
from lorarl_trainer.samples.sample import Sample

_PAD_TO = 16
"""Rows are padded to a multiple of this many tokens.

A CPU kernel ends a thread's share with scalar code if it is not a multiple of the vector width, and scalar and vector
code round differently. With the padding, one thread and two give the same bytes. It suits tensor cores too.
"""


@dataclass(frozen=True)
class TrainedShare:
    """Which of a micro-batch's trained tokens this rank's tokens predict, where ranks share the tokens.

    Attributes:
        trained: their places among all of them, [M].
        of_all: how many all are.
    """

    trained: torch.Tensor
    of_all: int


@dataclass(frozen=True)
class MicroBatch:
    """What the model is called with, and where the wanted log-probabilities are.

    Where ranks share the tokens, all but `share` is of this rank's.

    Attributes:
        tokens, positions: the model's input, [B, S].
        segments: the packing's (then B is 1); None for padded rows.
        predictors: takes the hidden states that predict the response tokens out of all [S * B] (Megatron's order),
            padded at the end.
        targets: the response tokens, padded likewise.
        kept: how many tokens were possible in the place of each, padded likewise; None if all were.
        count: N, without that padding.
        routing: the experts that the rollout sent each token to, [S, layers, experts of a token], as `samples.routing`
            has them; None if they are not known, and in padded rows.
        routing_on_host: the same, if they are known of every token that is a sample's; otherwise None.
        is_filler: it is of no sample, and nothing is made of it.
        share: which response tokens N counts; None if it counts all.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    segments: Segments | None
    predictors: Gather
    targets: torch.Tensor
    count: int
    kept: torch.Tensor | None
    routing: torch.Tensor | None = None
    routing_on_host: Routing | None = None
    is_filler: bool = False
    share: TrainedShare | None = None


def grouped(samples: Sequence[Sample], token_budget: int, key_budget: int | None, packed: bool) -> list[list[int]]:
    """Return the indices of each micro-batch's samples.

    No micro-batch has more than `token_budget` tokens, nor a packed one more than `key_budget` keys, except that a
    longer sequence, or pair of sequences, stands alone.
    """
    if packed:
        return packed_micro_batches(samples, token_budget, key_budget)
    lengths = [_padded(len(sample.tokens)) for sample in samples]
    return padded_micro_batches(lengths, token_budget, units(samples, range(len(samples))))


def packed_batch(
    samples: Sequence[Sample], device: torch.device, multiple: int, rank: int = 0, ranks: int = 1
) -> MicroBatch:
    """Lay samples out in one row whose length is a multiple of `multiple`, each distinct prompt once.

    If several ranks share it, this is the part of one of them, and has such a length.
    """
    packing, kept, share = pack(samples, multiple * ranks), _kept(samples), None
    rows = len(packing.tokens)
    if ranks > 1:
        own = share_of(packing, rank, ranks)
        packing, kept = own.packing, None if kept is None else kept[own.trained]
        share = TrainedShare(to_device(own.trained, device), own.trained_of_all)
    tokens, positions = (to_device(values, device)[None] for values in (packing.tokens, packing.positions))
    segments = Segments.of(packing, device, rows)
    batch = _micro_batch(tokens, positions, segments, packing.predictors, packing.targets, kept, device)
    routing = None if packing.routing is None else to_device(packing.routing, device)
    on_host = packing.routing if packing.routed else None
    return replace(batch, routing=routing, routing_on_host=on_host, share=share)


def padded_batch(samples: Sequence[Sample], device: torch.device) -> MicroBatch:
    """Lay samples out as rows, padded on the right."""
    count, length = len(samples), max(_padded(len(sample.tokens)) for sample in samples)
    tokens_B_S = np.zeros((count, length), dtype=np.int64)
    predictors = []
    for row, sample in enumerate(samples):
        tokens_B_S[row, : len(sample.tokens)] = sample.tokens
        predictors.append(sample.of_trained(np.arange(sample.prompt_length - 1, len(sample.tokens) - 1)) * count + row)
    targets = np.concatenate([sample.trained_targets for sample in samples])
    positions = torch.arange(length, device=device).expand(count, length)
    tokens, taken = to_device(tokens_B_S, device), np.concatenate(predictors)
    return _micro_batch(tokens, positions, None, taken, targets, _kept(samples), device)


def _micro_batch(
    tokens: torch.Tensor,
    positions: torch.Tensor,
    segments: Segments | None,
    predictors: np.ndarray,
    targets: np.ndarray,
    kept: np.ndarray | None,
    device: torch.device,
) -> MicroBatch:
    # A rank of several may have none, and takes part nevertheless.
    padding = np.zeros(max(_padded(len(predictors)), _PAD_TO) - len(predictors), np.int64)
    return MicroBatch(
        tokens=tokens,
        positions=positions,
        segments=segments,
        predictors=Gather(np.concatenate([predictors, padding]), tokens.numel(), device),
        targets=to_device(np.concatenate([targets, padding]).astype(np.int64), device),
        count=len(predictors),
        kept=None if kept is None else to_device(np.concatenate([kept, padding + 1]), device),
    )


def _kept(samples: Sequence[Sample]) -> np.ndarray | None:
    kept = [sample.kept for sample in samples if sample.kept is not None]
    return np.concatenate(kept).astype(np.int64) if kept else None


def _padded(length: int) -> int:
    return -(-length // _PAD_TO) * _PAD_TO
