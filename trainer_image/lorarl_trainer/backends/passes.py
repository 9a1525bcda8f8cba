"""The passes over some samples: micro-batches, in step with the other ranks where that is needed.

Shape suffix: N response tokens of a micro-batch, sample by sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
import torch.distributed as dist

from lorarl_trainer.backends.micro_batch import MicroBatch
from lorarl_trainer.backends.model import AdaptedModel
from lorarl_trainer.samples.sample import Sample

FILLER = Sample(np.zeros(2, np.int64), prompt_length=1, rollout_logprobs=np.zeros(1, np.float32))
"""Takes part in a collective pass for a rank that has no sample left."""


def passes(model: AdaptedModel, samples: Sequence[Sample], token_budget: int) -> Iterator[tuple[list[int], MicroBatch]]:
    """Yield the micro-batches of some samples, and which of the samples each holds.

    Where passes are collective (`AdaptedModel.lockstep`), a rank with fewer of them has fillers, of no sample.
    """
    micro_batches = partial(model.micro_batches, token_budget=token_budget)
    if not model.lockstep:
        yield from micro_batches(samples)
        return
    own = list(micro_batches(samples))
    most = torch.tensor(len(own), device=model.device)
    dist.all_reduce(most, op=dist.ReduceOp.MAX, group=model.parallel.data_group)
    yield from own
    for _ in range(int(most) - len(own)):
        for _, batch in micro_batches([FILLER]):
            yield [], replace(batch, is_filler=True)


def by_sample(
    model: AdaptedModel, samples: Sequence[Sample], token_budget: int, compute: Callable[[MicroBatch], torch.Tensor]
) -> list[np.ndarray]:
    """Return what `compute` makes of each micro-batch, [N], by sample."""
    result: list[np.ndarray] = [np.empty(0)] * len(samples)
    for indices, batch in passes(model, samples, token_budget):
        found_N = compute(batch).cpu().numpy()
        if not indices:
            continue
        ends = np.cumsum([samples[index].trained_length for index in indices])
        for index, found in zip(indices, np.split(found_N, ends[:-1]), strict=True):
            result[index] = found
    return result
