"""The updates of one worker: forward, loss, backward, gate, optimizer. No algorithm is known here, only losses.

Shape suffix: N response tokens of a micro-batch, sample by sample.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.distributed as dist

from lorarl_trainer.backends.megatron.micro_batch import MicroBatch
from lorarl_trainer.backends.megatron.model import LoraModel
from lorarl_trainer.backends.megatron.optimizer import AdapterOptimizer
from lorarl_trainer.devices.base import Device
from lorarl_trainer.devices.transfer import to_device
from lorarl_trainer.losses.base import LossInputs
from lorarl_trainer.losses.registry import LOSSES
from lorarl_trainer.samples.types import LOGPROB_DIFFERENCE, Disagreement, Sample, UpdateRequest, UpdateResult


class Trainer:
    """Forward and backward over micro-batches, the gate that withholds an update, and the optimizer's step."""

    def __init__(
        self,
        device: Device,
        model: LoraModel,
        optimizer: AdapterOptimizer,
        micro_batch_tokens: int,
        dropout: float,
    ) -> None:
        """With `dropout` above zero, the gate needs its own forward pass without it."""
        self._device, self._model, self._optimizer = device, model, optimizer
        self._micro_batch_tokens, self._dropout = micro_batch_tokens, dropout

    def update(self, request: UpdateRequest) -> UpdateResult:
        """Make one update (collective over all workers).

        It is withheld if engine and trainer disagree about the samples, or loss or gradient is not a finite number.
        """
        self._optimizer.zero_grad()
        clock = time.perf_counter()
        metrics, largest = self.forward_backward(request)
        self._device.synchronize()
        forward_backward = time.perf_counter() - clock
        # Losses report it for on-policy samples alone. Others are expected to differ.
        difference = metrics.get(LOGPROB_DIFFERENCE)
        disagree = difference is not None and not difference <= request.tolerance
        clock = time.perf_counter()
        # All ranks have the same loss, so all of them withhold the update, or none.
        withheld = disagree or not math.isfinite(metrics["loss"])
        norm = 0.0 if withheld else self.optim_step(request.learning_rate)
        self._device.synchronize()
        return UpdateResult(
            metrics={**metrics, "grad_norm": norm},
            disagreement=Disagreement(difference, largest) if difference is not None and disagree else None,
            seconds={"forward_backward": forward_backward, "optimizer": time.perf_counter() - clock},
        )

    def forward_backward(self, request: UpdateRequest) -> tuple[dict[str, float], float]:
        """Add the gradient of the samples' loss to the adapter's (collective over all workers).

        Returns:
            Metrics, averaged over all workers' response tokens, and the largest difference of engine and trainer.
        """
        # Each data-parallel rank drops other elements; tensor-parallel ranks, which share their inputs, the same.
        torch.manual_seed(request.seed + self._model.parallel.data_rank)
        totals = _Totals(self._model.device)
        for indices, batch in self._model.micro_batches(request.samples, self._micro_batch_tokens):
            inputs = self._inputs(request, [request.samples[index] for index in indices], batch)
            loss_N, columns = LOSSES[request.loss.kind](inputs, request.loss)
            (loss_N.sum() / request.total_tokens).backward()
            self._optimizer.require_gradients()
            totals.add({"loss": loss_N.detach(), **columns})
        if not request.samples:  # the names of the columns, of which other workers have values
            loss_N, columns = LOSSES[request.loss.kind](self._no_inputs(request), request.loss)
            totals.add({"loss": loss_N, **columns})
        if self._model.parallel.data_size > 1:
            totals.reduce(self._model.parallel.data_group)
        sums, largest = totals.values()
        return {name: value / request.total_tokens for name, value in sums.items()}, largest

    def optim_step(self, learning_rate: float) -> float:
        """Update the adapter with the gradients so far; return their norm before clipping (collective)."""
        return self._optimizer.step(learning_rate)

    @torch.no_grad()
    def log_probabilities(self, samples: Sequence[Sample], temperature: float) -> list[np.ndarray]:
        """Return the current policy's log-probabilities of each sample's response tokens, without dropout."""
        self._model.module.eval()
        result: list[np.ndarray] = [np.empty(0)] * len(samples)
        for indices, batch in self._model.micro_batches(samples, self._micro_batch_tokens):
            logprobs_N = self._model.log_probabilities(batch, temperature).cpu().numpy()
            ends = np.cumsum([samples[index].response_length for index in indices])
            for index, logprobs in zip(indices, np.split(logprobs_N, ends[:-1]), strict=True):
                result[index] = logprobs
        self._model.module.train()
        return result

    def _inputs(self, request: UpdateRequest, samples: Sequence[Sample], batch: MicroBatch) -> LossInputs:
        """Compute what the loss of a micro-batch looks at."""
        logprobs_N = self._model.log_probabilities(batch, request.temperature)
        measured_N = self._without_dropout(batch, request.temperature) if self._dropout else logprobs_N.detach()
        base_N = None
        if request.loss.kl_coefficient > 0:
            with torch.no_grad(), self._model.base_only():
                base_N = self._model.log_probabilities(batch, request.temperature)
        rollout = [sample.rollout_logprobs for sample in samples if sample.rollout_logprobs is not None]
        return LossInputs(
            logprobs=logprobs_N,
            measured=measured_N,
            rollout=self._per_token(rollout) if rollout else None,
            advantages=self._per_token([np.full(s.response_length, s.advantage) for s in samples]),
            base=base_N,
            on_policy=request.on_policy,
        )

    def _no_inputs(self, request: UpdateRequest) -> LossInputs:
        """Return the inputs of a loss of no tokens."""
        none_N = torch.zeros(0, device=self._model.device)
        base_N = none_N if request.loss.kl_coefficient > 0 else None
        return LossInputs(none_N, none_N, none_N, none_N, base_N, request.on_policy)

    @torch.no_grad()
    def _without_dropout(self, batch: MicroBatch, temperature: float) -> torch.Tensor:
        self._model.module.eval()
        logprobs_N = self._model.log_probabilities(batch, temperature)
        self._model.module.train()
        return logprobs_N

    def _per_token(self, values: Sequence[np.ndarray]) -> torch.Tensor:
        return to_device(np.concatenate(values).astype(np.float32), self._model.device)


class _Totals:
    """Sums of columns over micro-batches, and the largest difference of engine and trainer, kept on the device."""

    def __init__(self, device: torch.device) -> None:
        self._sums: dict[str, torch.Tensor] = {}
        self._largest = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, columns: Mapping[str, torch.Tensor]) -> None:
        """Add the columns of a micro-batch, [N] each."""
        for name, column_N in columns.items():
            total = column_N.double().sum()
            self._sums[name] = self._sums[name] + total if name in self._sums else total
        if LOGPROB_DIFFERENCE in columns and len(columns[LOGPROB_DIFFERENCE]):
            self._largest = torch.maximum(self._largest, columns[LOGPROB_DIFFERENCE].double().max())

    def reduce(self, group: object) -> None:
        """Add up over the workers of a group (collective)."""
        names = sorted(self._sums)
        sums = torch.stack([self._sums[name] for name in names])
        dist.all_reduce(sums, group=group)
        self._sums = dict(zip(names, sums, strict=True))
        dist.all_reduce(self._largest, op=dist.ReduceOp.MAX, group=group)

    def values(self) -> tuple[dict[str, float], float]:
        """Return the sums by name, and the largest difference."""
        sums = torch.stack(list(self._sums.values())).tolist()
        return dict(zip(self._sums, sums, strict=True)), self._largest.item()
