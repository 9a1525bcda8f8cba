"""The trainer of one worker: forward, loss, backward, update. It knows no algorithm, only advantages and a loss choice."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist

from lorarl_trainer.backends.megatron.micro_batch import MicroBatch
from lorarl_trainer.backends.megatron.model import LoraModel
from lorarl_trainer.backends.megatron.optimizer import AdapterOptimizer
from lorarl_trainer.backends.megatron.packed_attention import on_device
from lorarl_trainer.devices import Platform
from lorarl_trainer.samples.types import Sample, UpdateRequest, UpdateResult

_SUMS = ("loss", "difference", "rollout_kl", "base_kl", "clipped", "negative_logprob")


class Trainer:
    """Forward and backward over micro-batches, the drift gate, and the optimizer update."""

    def __init__(
        self,
        platform: Platform,
        model: LoraModel,
        optimizer: AdapterOptimizer,
        tokens_per_micro_batch: int,
        dropout: float,
    ) -> None:
        """`dropout` above zero means that the gate needs a forward pass of its own, with dropout off."""
        self._platform, self._model, self._optimizer = platform, model, optimizer
        self._budget, self._dropout = tokens_per_micro_batch, dropout
        self._device = model.device

    def update(self, request: UpdateRequest) -> UpdateResult:
        """Make one update, unless rollout and trainer disagree about the samples (collective over all workers)."""
        # Each data-parallel rank drops other elements; tensor-parallel ranks, which share their inputs, the same.
        torch.manual_seed(request.seed + self._model.data_parallel_rank)
        self._optimizer.zero_grad()
        clock = time.perf_counter()
        sums, largest = self._accumulate(request)
        totals, largest_of_all = self._reduce(sums, largest)
        self._platform.synchronize()
        forward_backward = time.perf_counter() - clock
        mean = {name: value / request.total_tokens for name, value in zip(_SUMS, totals, strict=True)}
        has_rollout = request.loss.kind == "policy_gradient"
        drifted = has_rollout and request.on_policy and not mean["difference"] <= request.tolerance
        clock = time.perf_counter()
        norm = 0.0 if drifted else self._optimizer.step(request.learning_rate)
        self._platform.synchronize()
        return UpdateResult(
            loss=mean["loss"],
            grad_norm=norm,
            logprob_difference=mean["difference"] if has_rollout else None,
            largest_difference=largest_of_all if has_rollout else None,
            rollout_kl=mean["rollout_kl"] if has_rollout else None,
            base_kl=mean["base_kl"] if request.loss.kl_coefficient > 0 else None,
            clipped=mean["clipped"] if has_rollout else None,
            entropy=mean["negative_logprob"] if has_rollout else None,
            drifted=drifted,
            seconds={"forward_backward": forward_backward, "optimizer": time.perf_counter() - clock},
        )

    @torch.no_grad()
    def log_probabilities(self, samples: Sequence[Sample], temperature: float) -> list[np.ndarray]:
        """Return the current policy's log-probabilities of each sample's response tokens, dropout off."""
        self._model.module.eval()
        result: list[np.ndarray] = [np.empty(0)] * len(samples)
        for indices, batch in self._model.micro_batches(samples, self._budget):
            logprobs_N = self._model.log_probabilities(batch, temperature).cpu().numpy()
            ends = np.cumsum([samples[index].response_length for index in indices])
            for index, logprobs in zip(indices, np.split(logprobs_N, ends[:-1]), strict=True):
                result[index] = logprobs
        self._model.module.train()
        return result

    def _accumulate(self, request: UpdateRequest) -> tuple[torch.Tensor, torch.Tensor]:
        """Run forward and backward over this worker's samples; return the sums of `_SUMS` and the largest difference."""
        sums = torch.zeros(len(_SUMS), dtype=torch.float64, device=self._device)
        largest = torch.zeros((), dtype=torch.float64, device=self._device)
        for indices, batch in self._model.micro_batches(request.samples, self._budget):
            samples = [request.samples[index] for index in indices]
            logprobs_N = self._model.log_probabilities(batch, request.temperature)
            measured_N = self._without_dropout(batch, request.temperature) if self._dropout else logprobs_N.detach()
            loss_N, statistics = self._loss(request, samples, batch, logprobs_N, measured_N)
            (loss_N.sum() / request.total_tokens).backward()
            sums += torch.stack([loss_N.detach().double().sum(), *(s.double().sum() for s in statistics)])
            largest = torch.maximum(largest, statistics[0].double().max())
        return sums, largest

    def _loss(
        self,
        request: UpdateRequest,
        samples: Sequence[Sample],
        batch: MicroBatch,
        logprobs_N: torch.Tensor,
        measured_N: torch.Tensor,
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the loss of the N response tokens and what `_SUMS` wants to know of them."""
        nothing_N = torch.zeros_like(measured_N)
        if request.loss.kind == "cross_entropy":
            return -logprobs_N, [nothing_N] * 5
        advantages_N = self._a_token([np.full(s.response_length, s.advantage) for s in samples])
        rollout_N = self._a_token([s.rollout_logprobs for s in samples if s.rollout_logprobs is not None])
        # Where nothing has changed since the rollout, the old policy is this one: a ratio of exactly 1 and no noise from vLLM's kernels.
        old_N = measured_N if request.on_policy else rollout_N
        ratio_N = (logprobs_N - old_N).exp()
        clip = request.loss.clip_range
        loss_N = -torch.minimum(ratio_N * advantages_N, ratio_N.clamp(1 - clip, 1 + clip) * advantages_N)
        kl_N = nothing_N
        if request.loss.kl_coefficient > 0:
            with torch.no_grad(), self._model.base_only():
                base_N = self._model.log_probabilities(batch, request.temperature)
            penalty_N = k3(logprobs_N, base_N)
            loss_N = loss_N + request.loss.kl_coefficient * penalty_N
            kl_N = penalty_N.detach()
        clipped_N = ((ratio_N.detach() - 1).abs() > clip).float()
        return loss_N, [(measured_N - rollout_N).abs(), k3(rollout_N, measured_N), kl_N, clipped_N, -measured_N]

    @torch.no_grad()
    def _without_dropout(self, batch: MicroBatch, temperature: float) -> torch.Tensor:
        self._model.module.eval()
        logprobs_N = self._model.log_probabilities(batch, temperature)
        self._model.module.train()
        return logprobs_N

    def _a_token(self, values: Sequence[np.ndarray]) -> torch.Tensor:
        return on_device(np.concatenate(values).astype(np.float32), self._device)

    def _reduce(self, sums: torch.Tensor, largest: torch.Tensor) -> tuple[list[float], float]:
        if self._model.data_parallel_size > 1:
            dist.all_reduce(sums, group=self._model.data_parallel_group)
            dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=self._model.data_parallel_group)
        return sums.tolist(), largest.item()


def k3(logprobs: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Return the k3 estimate of KL(p || q) for samples of p: q/p - 1 - log(q/p) (J. Schulman, "Approximating KL divergence", 2020)."""
    log_ratio = others - logprobs
    return log_ratio.exp() - 1 - log_ratio
