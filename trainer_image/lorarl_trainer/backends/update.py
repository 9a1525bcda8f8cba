"""The updates of one worker: forward, loss, backward, gate, optimizer. No algorithm is known here, only losses.

Shape suffix: N response tokens of a micro-batch, sample by sample.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
import torch.distributed as dist

from lorarl_trainer.backends.micro_batch import MicroBatch
from lorarl_trainer.backends.model import AdaptedModel
from lorarl_trainer.backends.optimizer import AdapterOptimizer
from lorarl_trainer.backends.passes import FILLER, by_sample, passes
from lorarl_trainer.backends.totals import Totals
from lorarl_trainer.devices.base import Device
from lorarl_trainer.devices.transfer import to_device
from lorarl_trainer.losses.base import LossInputs
from lorarl_trainer.losses.registry import compute_loss, finished
from lorarl_trainer.losses.sequences import Sequences
from lorarl_trainer.samples.agreement import Agreement, depth_of
from lorarl_trainer.samples.arrays import Floats
from lorarl_trainer.samples.requests import Accumulated, AdamW, LossChoice, Policy, UpdateRequest, UpdateResult
from lorarl_trainer.samples.routing import ROUTING_CHANGED
from lorarl_trainer.samples.sample import Sample

type _Take = Callable[[Sequence[int], torch.Tensor], None]


def without_routing(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples as another policy's than the rollout's, whose router chooses by itself."""
    return [replace(sample, routing=None) for sample in samples]


@dataclass
class Others:
    """Values of other adapters that an adapter is compared with or learns from, one tensor for each parameter.

    Attributes:
        reference: None for the base model.
        decay: of the reference, if that is an average.
        teacher: of the adapter that teaches, if one does.
    """

    reference: list[torch.Tensor] | None = None
    decay: float | None = None
    teacher: list[torch.Tensor] | None = None

    def on(self, device: torch.device | str) -> Others:
        """Return them on a device."""
        reference, teacher = (
            values and [value.to(device) for value in values] for values in (self.reference, self.teacher)
        )
        return Others(reference, self.decay, teacher)


class Trainer:
    """Forward and backward over micro-batches, the gate that withholds an update, and the optimizer's step."""

    def __init__(
        self,
        device: Device,
        model: AdaptedModel,
        optimizer: AdapterOptimizer,
        micro_batch_tokens: int,
        dropout: float,
    ) -> None:
        """With `dropout` above zero, the gate needs its own forward pass without it."""
        self._device, self._model, self._optimizer = device, model, optimizer
        self._micro_batch_tokens, self._dropout = micro_batch_tokens, dropout
        self.others = Others()

    def update(self, request: UpdateRequest) -> UpdateResult:
        """Make one update (collective over all workers).

        It is withheld if engine and trainer disagree about the samples, or loss or gradient is not a finite number.
        """
        clock = time.perf_counter()
        self._optimizer.zero_grad()
        metrics, agreement = self.forward_backward(request)
        metrics |= self._routing_metrics()
        self._device.synchronize()
        forward_backward = time.perf_counter() - clock
        disagreement = request.limits.exceeded(agreement) if agreement and request.limits else None
        clock = time.perf_counter()
        # All ranks have the same loss, so all of them withhold the update, or none.
        withheld = disagreement is not None or not math.isfinite(metrics["loss"])
        trains = request.trains_policy and not withheld
        norm = self.optim_step(request.learning_rate) if trains else 0.0
        if trains and math.isfinite(norm):  # otherwise nothing has changed
            self._average()
        self._device.synchronize()
        noise = {"logprob_noise": agreement.noise} if agreement else {}
        return UpdateResult(
            metrics={**metrics, **noise, "grad_norm": norm},
            disagreement=disagreement,
            seconds={"forward_backward": forward_backward, "optimizer": time.perf_counter() - clock},
        )

    def _routing_metrics(self) -> dict[str, float]:
        """Return how much of the routing of the rollout the router here would change (collective over all workers)."""
        differences = self._model.routing_differences()
        if differences is None:
            return {}
        sums, parallel = torch.tensor(differences, device=self._model.device), self._model.parallel
        shared = ((parallel.copies_size, parallel.copies_group), (parallel.tensor_size, parallel.tensor_group))
        for size, group in shared:
            if size > 1:
                dist.all_reduce(sums, group=group)
        other, known = sums.tolist()
        return {ROUTING_CHANGED: other / known} if known else {}

    def forward_backward(self, request: UpdateRequest) -> tuple[dict[str, float], Agreement | None]:
        """Add the gradient of the samples' loss to the adapter's (collective over all workers).

        Returns:
            Metrics, averaged over all workers' response tokens or pairs, and how the engine and the trainer agree about
            the tokens.
        """
        # Ranks with different tokens draw different dropout masks; tensor-parallel ranks share inputs and mask.
        torch.manual_seed(request.seed + self._model.parallel.copies_rank)
        totals = Totals(self._model.device)
        self._add(request, totals)
        if totals.empty:  # the names of the columns, of which other workers have values
            loss_N, columns = compute_loss(self._no_inputs(request), request.loss)
            totals.add({"loss": loss_N, **columns})
        if self._model.parallel.data_size > 1:
            totals.reduce(self._model.parallel.data_group)
        sums = totals.sums()
        agreement = totals.agreement() if request.on_policy else None
        loss = {"loss": sums.pop("loss") / request.normalizer}
        counted = request.loss.counted(request.total_tokens, request.total_samples)
        return loss | finished({name: value / counted for name, value in sums.items()}), agreement

    def _add(self, request: UpdateRequest, totals: Totals, take: _Take = lambda indices, measured_N: None) -> None:
        """Add the samples to the totals, and the gradient of their loss to the adapter's if the policy is trained.

        `take` gets the log-probabilities of each micro-batch, and the indices of its samples.
        """
        trains = request.trains_policy and torch.is_grad_enabled()
        # Samples that have no gradient need no backward pass.
        for with_gradient in (True, False):
            places = [
                n for n, s in enumerate(request.samples) if (trains and request.loss.has_gradient(s)) is with_gradient
            ]
            chosen = [request.samples[place] for place in places]
            for indices, batch in passes(self._model, chosen, self._micro_batch_tokens):
                samples = [chosen[index] for index in indices] or [FILLER]
                with torch.set_grad_enabled(with_gradient):
                    inputs = self._inputs(request, samples, batch)
                    loss_N, columns = compute_loss(inputs, request.loss) if indices else (0.0 * inputs.logprobs, {})
                if with_gradient:
                    (loss_N.sum() / request.normalizer).backward()
                    self._optimizer.require_gradients()
                if not indices:
                    continue
                take([places[index] for index in indices], inputs.measured)
                totals.add({"loss": loss_N.detach(), **columns})
                if inputs.on_policy and inputs.rollout is not None:
                    compared = inputs.rollout, inputs.measured, self._depths(samples)
                    if inputs.fresh is not None:
                        compared = tuple(values_N[inputs.fresh] for values_N in compared)
                    totals.compare(*compared)

    def optim_step(self, numbers: float | AdamW) -> float:
        """Update the adapter with the gradients so far; return their norm before clipping (collective).

        `numbers`: of this step; a learning rate alone leaves the others as the job has them.
        """
        return self._optimizer.step(numbers)

    def accumulate(self, request: UpdateRequest, *, with_gradient: bool) -> Accumulated:
        """Add the gradient of the samples' loss to those before it, without a step. Not collective: for one worker."""
        torch.manual_seed(request.seed)
        totals = Totals(self._model.device)
        logprobs: list[Floats] = [np.empty(0, np.float32)] * len(request.samples)

        def take(indices: Sequence[int], measured_N: torch.Tensor) -> None:
            lengths = [request.samples[index].trained_length for index in indices]
            for index, part_N in zip(indices, measured_N.split(lengths), strict=True):
                logprobs[index] = part_N.cpu().numpy()

        with torch.set_grad_enabled(with_gradient):
            self._add(request, totals, take)
        self._device.synchronize()
        return Accumulated(logprobs, totals.sums())

    @torch.no_grad()
    def log_probabilities(
        self, samples: Sequence[Sample], temperature: float, of: Policy = "policy"
    ) -> list[np.ndarray]:
        with self._as(of):
            return self._log_probabilities(samples if of == "policy" else without_routing(samples), temperature)

    def _log_probabilities(self, samples: Sequence[Sample], temperature: float) -> list[np.ndarray]:
        self._model.module.eval()
        compute = partial(self._model.log_probabilities, temperature=temperature)
        found = by_sample(self._model, samples, self._micro_batch_tokens, compute)
        self._model.module.train()
        return found

    @torch.no_grad()
    def keep_reference(self, decay: float | None = None) -> None:
        """Let the reference be the adapter as it is now, in place of the base model.

        With a decay it follows the adapter: after each update, it keeps this share of itself.
        """
        reference = [parameter.detach().clone() for parameter in self._model.parameters.values()]
        if decay is not None:  # in fp32: small steps would be lost
            reference = [value.float() for value in reference]
        self.others = replace(self.others, reference=reference, decay=decay)

    @property
    def averaged(self) -> list[torch.Tensor] | None:
        """The values of a reference that follows the adapter, one per parameter; None if there is none."""
        return self.others.reference if self.others.decay is not None else None

    @torch.no_grad()
    def restore_average(self, values: Sequence[torch.Tensor]) -> None:
        """Let the reference that follows the adapter have these values."""
        assert self.averaged is not None
        torch._foreach_copy_(self.averaged, list(values))

    @torch.no_grad()
    def _average(self) -> None:
        """Let the reference follow the adapter: r = decay r + (1 - decay) p."""
        reference, decay = self.others.reference, self.others.decay
        if decay is None or reference is None:
            return
        newest = [parameter.detach().float() for parameter in self._model.parameters.values()]
        torch._foreach_lerp_(reference, newest, 1 - decay)

    def keep_teacher(self, values: Sequence[torch.Tensor]) -> None:
        """Let an adapter teach, given as one tensor per trainable parameter."""
        parameters = self._model.parameters.values()
        self.others.teacher = [value.to(parameter) for value, parameter in zip(values, parameters, strict=True)]

    def _as(self, of: Policy) -> AbstractContextManager[None]:
        if of == "policy":
            return nullcontext()
        held = self.others.reference if of == "reference" else self.others.teacher
        assert held is not None or of == "reference", "a job whose algorithm asks a teacher's adapter has one"
        if held is None:
            return self._model.base_only()
        parameters = self._model.parameters.values()
        return self._model.holding([value.to(own.dtype) for value, own in zip(held, parameters, strict=True)])

    def _inputs(self, request: UpdateRequest, samples: Sequence[Sample], batch: MicroBatch) -> LossInputs:
        """Compute what the loss of a micro-batch looks at. Dropout matters to the gradient alone."""
        drops = self._dropout > 0 and torch.is_grad_enabled()
        compute = self._model.log_probabilities if drops or not self._dropout else self._without_dropout
        logprobs_N = compute(batch, request.temperature)
        measured_N = self._without_dropout(batch, request.temperature) if drops else logprobs_N.detach()
        base_N = None
        if request.loss.needs_reference:
            with torch.no_grad(), self._as("reference"):
                of_reference = self._without_dropout if self._dropout else self._model.log_probabilities
                base_N = of_reference(replace(batch, routing=None), request.temperature)
        rollout = [sample.rollout_logprobs for sample in samples if sample.rollout_logprobs is not None]
        old = [sample.old_logprobs for sample in samples if sample.old_logprobs is not None]
        return LossInputs(
            logprobs=logprobs_N,
            measured=measured_N,
            rollout=self._per_token(rollout) if rollout else None,
            advantages=self._per_token([np.broadcast_to(s.advantage, s.trained_length) for s in samples]),
            base=base_N,
            on_policy=request.on_policy,
            sequences=self._sequences(request.loss, samples),
            old=self._per_token(old) if old else None,
            fresh=self._fresh(samples),
        )

    def _no_inputs(self, request: UpdateRequest) -> LossInputs:
        """Return the inputs of a loss of no tokens."""
        none_N = torch.zeros(0, device=self._model.device)
        base_N = none_N if request.loss.needs_reference else None
        sequences = self._sequences(request.loss, [])
        return LossInputs(none_N, none_N, none_N, none_N, base_N, request.on_policy, sequences)

    def _fresh(self, samples: Sequence[Sample]) -> torch.Tensor | None:
        if all(sample.fresh for sample in samples):
            return None
        return self._per_token([np.full(sample.trained_length, sample.fresh) for sample in samples]) > 0

    def _sequences(self, loss: LossChoice, samples: Sequence[Sample]) -> Sequences | None:
        if not loss.by_sequence:
            return None
        lengths = [sample.trained_length for sample in samples]
        whole = [sample.episode_length or length for sample, length in zip(samples, lengths, strict=True)]
        return Sequences.of(lengths, self._model.device, None if whole == lengths else whole)

    @torch.no_grad()
    def _without_dropout(self, batch: MicroBatch, temperature: float) -> torch.Tensor:
        self._model.module.eval()
        logprobs_N = self._model.log_probabilities(batch, temperature)
        self._model.module.train()
        return logprobs_N

    def _depths(self, samples: Sequence[Sample]) -> torch.Tensor:
        """Return each trained token's depth in its sequence, [N]."""
        positions = [s.of_trained(np.arange(s.prompt_length, len(s.tokens))) for s in samples]
        return to_device(depth_of(np.concatenate(positions)), self._model.device)

    def _per_token(self, values: Sequence[np.ndarray]) -> torch.Tensor:
        return to_device(np.concatenate(values).astype(np.float32), self._model.device)
