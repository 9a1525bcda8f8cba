"""AdamW over the adapter: fp32 masters and moments, whatever the precision of the model.

The adapter is a thousandth of the model, so every worker keeps the whole state of its own share: nothing to shard, nothing to offload.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from lorarl_api.v1alpha1 import TrainerSpec
from lorarl_trainer.megatron_lora.model import LoraModel

MOMENTS = ("exp_avg", "exp_avg_sq")
"""What torch.optim.AdamW calls its running averages of the gradient and of its square."""


class AdapterOptimizer:
    """AdamW on fp32 masters of the trainable parameters."""

    def __init__(self, model: LoraModel, spec: TrainerSpec) -> None:
        """Take the parameters' values as they are for the masters; `load` replaces them."""
        self._model, self._spec = model, spec
        self._parameters = list(model.parameters.values())
        # In fp32 the parameters are their own masters.
        self.masters = [p if p.dtype == torch.float32 else p.detach().float().requires_grad_() for p in self._parameters]
        self._adamw = torch.optim.AdamW(self.masters, lr=spec.learning_rate, weight_decay=spec.weight_decay, foreach=True)
        self.updates = 0

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    def step(self, rate: float) -> float:
        """Sum the gradients over the data-parallel workers, clip, update at this learning rate; return the norm before clipping."""
        for parameter in self._parameters:
            if parameter.grad is None:  # a worker whose share of the batch is empty
                parameter.grad = torch.zeros_like(parameter)
        self._sum_over_data_parallel()
        norm = self._model.gradient_norm()
        scale = min(1.0, self._spec.max_grad_norm / (norm + 1e-6))
        for master, parameter in zip(self.masters, self._parameters, strict=True):
            master.grad = parameter.grad.float().mul_(scale)
        for group in self._adamw.param_groups:
            group["lr"] = rate
        self._adamw.step()
        self.updates += 1
        self._write_back()
        return norm

    def moments(self, name: str) -> list[torch.Tensor]:
        """Return one of `MOMENTS`, a tensor a parameter; zeros before the first update."""
        return [self._adamw.state[m][name] if self.updates else torch.zeros_like(m) for m in self.masters]

    @torch.no_grad()
    def load(self, masters: list[torch.Tensor], moments: dict[str, list[torch.Tensor]], updates: int) -> None:
        """Go on from saved masters and moments, one tensor a parameter in the parameters' order, after so many updates."""
        self.updates = updates
        for index, master in enumerate(self.masters):
            master.copy_(masters[index])
            if updates:
                # AdamW keeps its step count as a float32 tensor on the CPU.
                state = {"step": torch.tensor(float(updates))}
                state.update({name: moments[name][index].to(master, copy=True) for name in MOMENTS})
                self._adamw.state[master] = state
        self._write_back()

    def _sum_over_data_parallel(self) -> None:
        if self._model.data_parallel_size == 1:
            return
        gradients = [p.grad for p in self._parameters]
        flat = torch.cat([g.float().flatten() for g in gradients])
        dist.all_reduce(flat, group=self._model.data_parallel_group)
        for gradient, summed in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(summed.view_as(gradient))

    @torch.no_grad()
    def _write_back(self) -> None:
        for master, parameter in zip(self.masters, self._parameters, strict=True):
            if master is not parameter:
                parameter.copy_(master)
