"""AdamW over the adapter: fp32 masters and moments, whatever the precision of the model.

The adapter is a thousandth of the model, so every worker keeps the whole state of its share of it. There is nothing to
shard and nothing to offload.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import torch
import torch.distributed as dist

from lorarl_api.v1alpha1 import TrainerSpec
from lorarl_trainer.backends.model import AdaptedModel
from lorarl_trainer.backends.stacked import Stacked, Taker
from lorarl_trainer.errors import WorkerError
from lorarl_trainer.samples.requests import AdamW

MOMENTS = ("exp_avg", "exp_avg_sq")
"""torch.optim.AdamW's names of its running averages of the gradient and of its square."""


@dataclass(frozen=True)
class Parked:
    """An adapter that is not trained at the moment, with its optimizer: see `AdapterOptimizer.parked`.

    Attributes:
        gradient: the sum of the gradients since its last update, all parameters in one row.
        numbers: AdamW's, those of its job.
    """

    masters: list[torch.Tensor]
    moments: dict[str, list[torch.Tensor]]
    updates: int
    gradient: torch.Tensor
    numbers: AdamW


class AdapterOptimizer:
    """AdamW on fp32 masters of the trainable parameters.

    Gradients are added up in fp32 over micro-batches, in one flat buffer. A sum in bf16 would lose small contributions.
    """

    def __init__(
        self,
        model: AdaptedModel,
        spec: TrainerSpec,
        *,
        fused: bool,
        values: Sequence[torch.Tensor] | None = None,
        heads: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """Take the adapter's values as they are for the masters; `load` replaces them.

        Args:
            model: the gradients of its parameters are this adapter's while they are its `values`.
            spec: AdamW's numbers.
            fused: update all tensors in one kernel.
            values: the adapter's, one tensor for each of the model's parameters, which they need not be at the moment.
                By default they are.
            heads: fp32 parameters besides, by name, each whole on every rank.
        """
        self._model, self.heads = model, dict(heads or {})
        self.take_numbers(spec)
        parameters = list(model.parameters.values())
        self.values = [parameter.data for parameter in parameters] if values is None else list(values)
        owned = [*self.values, *(head.data for head in self.heads.values())]
        # In fp32 the values are their own masters.
        self.masters = [value if value.dtype == torch.float32 else value.float() for value in owned]
        self._gradient = torch.zeros(sum(value.numel() for value in owned), device=owned[0].device)
        self.gradients = [
            flat.view_as(value)
            for flat, value in zip(self._gradient.split([value.numel() for value in owned]), owned, strict=True)
        ]
        """The sum of the gradients so far, a view of the flat buffer for each value and each head."""
        leaves = model.parameters | self.heads
        self._without_gradient = set(leaves)
        for (name, leaf), value, gradient in zip(leaves.items(), owned, self.gradients, strict=True):
            leaf.register_post_accumulate_grad_hook(partial(self._add, name, value, gradient))
        place = {id(parameter): index for index, parameter in enumerate(parameters)}
        for stacked in model.stacked:
            self._take(stacked, [place.get(id(part)) for part in stacked.parts])
        self._adamw = torch.optim.AdamW(
            self.masters,
            lr=spec.learning_rate,
            betas=(spec.beta1, spec.beta2),
            eps=spec.epsilon,
            weight_decay=spec.weight_decay,
            fused=fused,
            foreach=not fused,
        )
        self.updates = 0

    def take_numbers(self, spec: TrainerSpec) -> None:
        """Let the steps from now on have the numbers of this job."""
        self._numbers = AdamW(
            *(spec.learning_rate, spec.beta1, spec.beta2, spec.epsilon, spec.weight_decay, spec.max_grad_norm)
        )

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self._gradient.zero_()

    def require_gradients(self) -> None:
        """Check after a backward pass that every parameter has had a gradient by now.

        Raises:
            WorkerError: some have not. They would be published as if they had been trained.
        """
        if missing := sorted(self._without_gradient):
            raise WorkerError(
                f"{len(missing)} of {len(self.masters)} adapter tensors got no gradient in the first backward "
                f"pass, {missing[0]} for example. Nothing was updated. This is a fault of lorarl: report it with the "
                "manifest, and set spec.trainer.recompute: none meanwhile."
            )

    def step(self, numbers: float | AdamW) -> float:
        """Sum the gradients over the ranks with other tokens, clip them and update; return their norm before clipping.

        If the norm is not a finite number, nothing is updated. See `Trainer.optim_step` for `numbers`.
        """
        one = numbers if isinstance(numbers, AdamW) else replace(self._numbers, learning_rate=numbers)
        self.sum_over_workers()
        norm = self._norm()
        if not math.isfinite(norm):
            return norm
        self._gradient.mul_(min(1.0, one.max_norm / (norm + 1e-6)))
        for master, gradient in zip(self.masters, self.gradients, strict=True):
            master.grad = gradient
        for group in self._adamw.param_groups:
            group.update(lr=one.learning_rate, betas=(one.beta1, one.beta2), eps=one.epsilon)
            group["weight_decay"] = one.weight_decay
        self._adamw.step()
        for master in self.masters:
            master.grad = None
        self.updates += 1
        self._write_back()
        return norm

    def moments(self, name: str) -> list[torch.Tensor]:
        """Return one of `MOMENTS`, one tensor per parameter; zeros before the first update."""
        return [self._adamw.state[m][name] if self.updates else torch.zeros_like(m) for m in self.masters]

    @torch.no_grad()
    def load(self, masters: list[torch.Tensor], moments: dict[str, list[torch.Tensor]], updates: int) -> None:
        """Resume from saved masters and moments, one tensor per parameter in their order, after so many updates."""
        self.updates = updates
        torch._foreach_copy_(self.masters, masters)
        if updates:
            for index, master in enumerate(self.masters):
                # AdamW keeps its step count as a float32 tensor, on the GPU only if it is fused.
                state = {"step": torch.tensor(float(updates), device=master.device)}
                state.update({name: moments[name][index].to(master, copy=True) for name in MOMENTS})
                self._adamw.state[master] = state
        else:
            self._adamw.state.clear()
        self._write_back()

    def parked(self) -> Parked:
        """Return a copy of all that it has, in the host's memory."""

        def on_host(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            return [tensor.detach().to("cpu", copy=True) for tensor in tensors]

        moments = {name: on_host(self.moments(name)) for name in MOMENTS} if self.updates else {}
        gradient = self._gradient.to("cpu", copy=True)
        return Parked(on_host(self.masters), moments, self.updates, gradient, self._numbers)

    def take(self, parked: Parked) -> None:
        """Continue as what was `parked`, also with the gradients that it had."""
        self.load(parked.masters, parked.moments, parked.updates)
        self._gradient.copy_(parked.gradient)
        self._numbers = parked.numbers

    def sum_over_workers(self) -> None:
        """Sum the gradients, of experts over the workers that have the same ones: theirs are of all tokens already.

        What the experts of all workers share is summed over these too.
        """
        parallel, model = self._model.parallel, self._model
        counts = [gradient.numel() for gradient in self.gradients[: model.outer + model.split_experts]]
        outer, of_experts = sum(counts[: model.outer]), sum(counts)
        if parallel.expert_data_size > 1 and of_experts:
            dist.all_reduce(self._gradient[:of_experts], group=parallel.expert_copies)
        if parallel.expert_size > 1 and outer:
            dist.all_reduce(self._gradient[:outer], group=parallel.expert_group)
        if parallel.copies_size > 1:
            dist.all_reduce(self._gradient[of_experts:], group=parallel.copies_group)

    def _norm(self) -> float:
        """Return the norm of the gradients. Each rank has a part of the adapter, and all of the heads."""
        adapter, heads = self.gradients[: len(self.values)], self.gradients[len(self.values) :]
        norm = self._model.norm(adapter)
        return math.hypot(norm, *(head.norm().item() for head in heads)) if heads else norm

    def _add(self, name: str, value: torch.Tensor, total: torch.Tensor, parameter: torch.Tensor) -> None:
        """Add a micro-batch's gradient to the total and forget it, unless the parameter is another adapter's now."""
        if parameter.data_ptr() != value.data_ptr():
            return
        assert parameter.grad is not None, "autograd calls this once it is set"
        total.add_(parameter.grad)
        parameter.grad = None
        self._without_gradient.discard(name)

    def _take(self, stacked: Stacked, places: Sequence[int | None]) -> None:
        """Let the gradient of stacked parameters be added as one, if their sums are equally far apart in the buffer."""
        if None in places:
            return  # some are no parameters
        indices = [place for place in places if place is not None]
        starts = [self.gradients[index].storage_offset() for index in indices]
        steps = {after - before for before, after in pairwise(starts)} or {self.gradients[indices[0]].numel()}
        if len(steps) > 1 or (step := steps.pop()) <= 0:
            return
        shape = len(indices), self.gradients[indices[0]].numel()
        total = self._gradient.as_strided(shape, (step, 1), starts[0])
        names, first, value = list(self._model.parameters), stacked.parts[0], self.values[indices[0]]
        of_these = {names[index] for index in indices}

        def add(gradient: torch.Tensor) -> None:
            total.add_(gradient.flatten(1))
            self._without_gradient -= of_these

        stacked.takers.append(Taker(lambda: first.data_ptr() == value.data_ptr(), add))

    @torch.no_grad()
    def _write_back(self) -> None:
        if self.masters[0] is not self.values[0]:
            torch._foreach_copy_(self.values, self.masters[: len(self.values)])
