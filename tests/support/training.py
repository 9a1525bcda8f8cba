"""A trainer without an engine, on either platform: model, optimizer and the gradients of one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from lorarl_api.v1alpha1 import TrainerSpec
from lorarl_trainer.backends.registry import get_backend
from lorarl_trainer.devices.base import Device
from lorarl_trainer.models.model_sizes import shape_of
from lorarl_trainer.planning.precision import PRECISIONS
from lorarl_trainer.planning.usual import decide
from lorarl_trainer.samples.agreement import AgreementLimits
from lorarl_trainer.samples.requests import LossChoice, UpdateRequest
from lorarl_trainer.samples.sample import Sample
from lorarl_trainer.samples.wire import Samples
from lorarl_trainer.storage.downloads import read_model_config

from .in_process import tiny_job
from .plans import changed


class BareTrainer:
    """A LoRA model with random adapters on one device, its optimizer and its trainer."""

    def __init__(
        self,
        device: Device,
        folder: Path,
        precision: str,
        adapter_type: str = "canonical_lora",
        recompute: str = "none",
        budget: int = 16_384,
        dropout: float = 0.0,
        targets: Sequence[str] = ("all-linear",),
        packed: bool = False,
        fused: bool = True,
        tensor_parallel: int = 1,
        context_parallel: int = 1,
        expert_parallel: int = 1,
        rollouts: bool = True,
        experts: str = "perExpert",
        rank: int = 8,
    ) -> None:
        """`packed` lays samples out in one row, and fuses the layers unless there is dropout or `fused` is False.

        With `tensor_parallel`, `context_parallel` or `expert_parallel`, torch.distributed is initialised, and this is
        one rank of so many. Unless there are `rollouts`, no engine would use the base.
        """
        get_backend("megatron").import_libraries(device)
        if not dist.is_initialized():
            dist.init_process_group(device.distributed_backend, store=dist.HashStore(), rank=0, world_size=1)
        device.select(dist.get_rank())
        from lorarl_trainer.backends.megatron.model import LoraModel
        from lorarl_trainer.backends.optimizer import AdapterOptimizer
        from lorarl_trainer.backends.update import Trainer

        self.device, self.budget = device, budget
        adapter = {"adapter__type": adapter_type, "adapter__dropout": dropout, "adapter__targetModules": list(targets)}
        adapter |= {"adapter__experts": experts, "adapter__rank": rank}
        ranks = {"trainer__tensorParallelSize": tensor_parallel, "trainer__contextParallelSize": context_parallel}
        trainer = {"trainer__recompute": recompute, "trainer__expertParallelSize": expert_parallel} | ranks
        self.spec = spec = tiny_job(folder, folder, **trainer, **adapter).spec
        plan = changed(
            decide(spec, shape_of(read_model_config(folder)), None),
            compute=PRECISIONS[precision],
            packed=packed,
            rollouts=rollouts,
            fused_layers=packed and fused and not dropout,
        )
        self.model = LoraModel(device, folder, spec.adapter, plan)
        self.optimizer = AdapterOptimizer(
            self.model, TrainerSpec.model_validate({"learningRate": 1e-3}), fused=device.name != "cpu"
        )
        self.trainer = Trainer(device, self.model, self.optimizer, budget, dropout)
        stream = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.model.parameters.values():
                parameter.copy_(0.05 * torch.randn(parameter.shape, generator=stream))

    def loss_and_gradients(self, samples: Sequence[Sample], **changes: Any) -> tuple[float, dict[str, torch.Tensor]]:
        """Run forward and backward without an update; return mean loss and the adapter's gradients (float32, CPU)."""
        metrics, gradients = self.metrics_and_gradients(samples, **changes)
        return metrics["loss"], gradients

    def metrics_and_gradients(
        self, samples: Sequence[Sample], *, zero: bool = True, **changes: Any
    ) -> tuple[Mapping[str, float], dict[str, torch.Tensor]]:
        """Do the same, and return all metrics of the loss. If not `zero`, add to what was accumulated."""
        values: dict[str, Any] = {
            "samples": Samples(samples),
            "loss": LossChoice("policy_gradient", clip_range=0.2),
            "total_tokens": sum(sample.response_length for sample in samples),
            "temperature": 0.8,
            "learning_rate": 0.0,
            "seed": 0,
            "on_policy": True,
            "limits": AgreementLimits(tolerance=float("inf")),
        }
        request = UpdateRequest(**(values | changes))
        if zero:
            self.optimizer.zero_grad()
        metrics, _ = self.trainer.forward_backward(request)
        self.optimizer.sum_over_workers()
        names = [name.removeprefix("module.") for name in self.model.parameters]  # the wrapper of bf16 models
        gradients = [gradient.cpu().clone() for gradient in self.optimizer.gradients]
        return metrics, dict(zip(names, gradients, strict=True))


def elements_kept(model: Any, samples: Sequence[Sample]) -> int:
    """Return how many elements one micro-batch's forward pass keeps for the backward pass."""
    kept = 0

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        kept += 0 if isinstance(tensor, torch.nn.Parameter) else tensor.numel()
        return tensor

    ((_, batch),) = model.micro_batches(samples, 10_000)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.log_probabilities(batch, 1.0)
    return kept


def grouped_samples(vocabulary: int, prompts: int = 4, longest: int = 30, seed: int = 0) -> list[Sample]:
    """Samples of prompts with one to four completions each, in mixed order, with rollout log-probabilities of zero."""
    stream = np.random.default_rng(seed)
    samples = []
    for number in range(prompts):
        prompt = stream.integers(4, vocabulary, 1 + int(stream.integers(longest)))
        for _ in range(1 + number % 4):
            length = 1 + int(stream.integers(longest))
            tokens = np.concatenate([prompt, stream.integers(4, vocabulary, length)])
            samples.append(Sample(tokens, len(prompt), float(stream.normal()), np.zeros(length, np.float32)))
    return [samples[index] for index in stream.permutation(len(samples))]


def relative_difference(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    """The norm of the difference of two gradients, over the norm of the second."""
    difference = sum(float((left[name].double() - right[name].double()).square().sum()) for name in right)
    return float((difference / sum(float(t.double().square().sum()) for t in right.values())) ** 0.5)
