"""Gradients in Hugging Face names, which are the same on any layout of ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from lorarl_trainer.backends.critic import Critic
from lorarl_trainer.backends.layout import AdapterLayout
from lorarl_trainer.devices.base import Device
from lorarl_trainer.lora.config import AdapterConfig
from lorarl_trainer.lora.random_tensors import uniform
from lorarl_trainer.samples.critic import CriticUpdate
from lorarl_trainer.samples.packing import split_evenly
from lorarl_trainer.samples.requests import LossChoice
from lorarl_trainer.samples.sample import Sample

from .in_process import owners, update_request
from .routers import with_any_routing
from .tiny_models import VOCABULARY
from .training import BareTrainer, grouped_samples

ATTENTION, MLP = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")
GSPO = {"ratio": "sequence", "aggregation": "sequence_mean"}
BELOW = ("*.layers.1.self_attn.*", "*.mlp.*")
"""No adapter comes before the first MLP."""
PARTS = ("q_proj", "v_proj", "up_proj", "o_proj")


@dataclass(frozen=True)
class Case:
    """What is trained, and how.

    Attributes:
        fused: in fused layers; otherwise in Megatron's own, of which an adapter's dropout has need.
        architecture: the tiny model.
        context, data: of several ranks, so many share the context, and so many such groups the samples. The others are
            tensor parallel.
        experts: so many of the ranks share the experts of each layer.
        matrices: `adapter.experts`.
        micro_batch_tokens: the batch is of several micro-batches if these are few.
        critic: a critic beside the policy, whose gradients and values are compared too.
        long: takes part only in tests that are marked so.
        loss: fields of the `LossChoice` beside the coefficient of KL.
        dropout: drop large inputs of the adapters: a random choice would be another one on each layout.
    """

    adapter_type: str = "canonical_lora"
    targets: tuple[str, ...] = ("all-linear",)
    recompute: str = "none"
    kl_coefficient: float = 0.0
    fused: bool = True
    dropout: bool = False
    architecture: str = "qwen2"
    context: int = 1
    data: int = 1
    experts: int = 1
    matrices: str = "perExpert"
    micro_batch_tokens: int = 16_384
    critic: bool = False
    long: bool = False
    loss: Mapping[str, Any] = field(default_factory=dict)

    def gradients(self, device: Device, models: Path, precision: str, ranks: int = 1) -> dict[str, torch.Tensor]:
        """Return the gradients of one batch, its loss as "loss" and its log-probabilities as "logprobs", on one rank.

        It is one of so many. The model is in the folder `models`, under its architecture's name.
        """
        context, data = (self.context, self.data) if ranks > 1 else (1, 1)
        trainer = BareTrainer(
            device,
            models / self.architecture,
            precision,
            self.adapter_type,
            self.recompute,
            self.micro_batch_tokens,
            targets=self.targets,
            packed=True,
            fused=self.fused,
            tensor_parallel=ranks // context // data,
            context_parallel=context,
            expert_parallel=self.experts if ranks > 1 else 1,
            experts=self.matrices,
        )
        layout = AdapterLayout(trainer.model)
        owner = owners(trainer.model.targets, AdapterConfig.of(trainer.spec.adapter, None))
        adapter = {name: uniform(shape, 0.1, owner[name][1]) for name, shape in layout.shapes.items()}
        with torch.no_grad():
            torch._foreach_copy_(list(trainer.model.parameters.values()), layout.scatter(adapter))
        if self.dropout:
            for module in trainer.model.module.modules():
                if hasattr(module, "linear_in"):
                    module.dropout = _WithoutLargeInputs()
        choice = LossChoice("policy_gradient", clip_range=0.2, kl_coefficient=self.kl_coefficient, **self.loss)
        samples = grouped_samples(VOCABULARY, prompts=6)
        if self.experts > 1:
            samples = with_any_routing(samples)  # what rounds otherwise chooses others
        data_rank = trainer.model.parallel.data_rank
        if self.experts > 1 and data > 1:
            ends = [None, *range(-3 * (data - 1), 0, 3), None]
            own = samples[ends[data_rank] : ends[data_rank + 1]]  # the last ones have few, and so fewer micro-batches
        else:
            own = [samples[index] for index in split_evenly(samples, data)[data_rank]]
        tokens = sum(sample.response_length for sample in samples)
        loss, _ = trainer.loss_and_gradients(own, loss=choice, total_tokens=tokens, total_samples=len(samples))
        gradients = layout.gather(trainer.optimizer.gradients)
        logprobs = np.concatenate(trainer.trainer.log_probabilities(samples, 1.0))
        found = {"loss": torch.tensor([loss]), "logprobs": torch.from_numpy(logprobs)}
        found |= {name: tensor.float().cpu().clone() for name, tensor in gradients.items()}
        return found | (_of_critic(trainer, layout, adapter, samples) if self.critic else {})


def _of_critic(
    trainer: BareTrainer, layout: AdapterLayout, adapter: dict[str, torch.Tensor], samples: list[Sample]
) -> dict[str, torch.Tensor]:
    """Return a critic's values, and its gradients when samples in turn are to be worth more and less by one."""
    model = trainer.model
    fused = model.device.type != "cpu"
    critic = Critic(trainer.device, model, layout, trainer.spec, trainer.budget, fused=fused)
    critic.load(adapter, "test")
    with torch.no_grad():
        critic.head.copy_(uniform((1, model.hidden_size), 0.1, "head"))
    values, signs = critic.values(samples), np.resize([1, -1], len(samples))
    taught = [replace(one, values=of, returns=of + sign) for one, of, sign in zip(samples, values, signs, strict=True)]
    critic.forward_backward(update_request(taught), CriticUpdate(learning_rate=0.0, clip_range=1e6, alone=False))
    critic.optimizer.sum_over_workers()
    *gradients, of_head = critic.optimizer.gradients
    found = layout.gather(gradients) | {"head": of_head, "values": torch.from_numpy(np.concatenate(values))}
    return {f"critic.{name}": tensor.float().cpu().clone() for name, tensor in found.items()}


def gradients_of_ranks(
    folder: Path, model_of: Callable[[str], Path], names: Sequence[str], ranks: int, gpus: int, precision: str
) -> dict[str, dict[str, torch.Tensor]]:
    """Return the gradients of these of `CASES[ranks]` on so many ranks, each in a separate process.

    `folder` gets them, and the models that `model_of` finds by their architectures.
    """
    for architecture in {CASES[ranks][name].architecture for name in names}:
        if not (folder / architecture).exists():
            (folder / architecture).symlink_to(model_of(architecture))
    script, tests = Path(__file__).with_name("rank_gradients.py"), Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), *sys.path])}
    command = [sys.executable, *(str(part) for part in (script, ranks, folder, gpus, precision, *names))]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert result.returncode == 0, result.stderr[-4000:]
    return {name: load_file(folder / file_of(number)) for number, name in enumerate(names)}


def file_of(number: int) -> str:
    """Return the name of the file with a case's gradients."""
    return f"{number}.safetensors"


class _WithoutLargeInputs(torch.nn.Module):
    """Continuous, since layouts round differently."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (10 * (0.7 - x)).sigmoid() / 0.8


CASES: dict[int, dict[str, Case]] = {
    2: {
        "everything, KL": Case(kl_coefficient=0.1),
        "lora, everything": Case("lora", architecture="qwen3-tied"),
        "parts of layers, selective": Case(targets=PARTS, recompute="selective"),
        "MLP, full": Case(targets=MLP, recompute="full"),
        "lora, attention, full": Case("lora", ATTENTION, recompute="full"),
        "MLP below, selective": Case(targets=BELOW, recompute="selective", kl_coefficient=0.1),
        "dropout": Case(fused=False, dropout=True, kl_coefficient=0.1),
        "lora, dropout, selective": Case("lora", fused=False, dropout=True, recompute="selective"),
        "parts of layers, dropout, full": Case(targets=PARTS, fused=False, dropout=True, recompute="full"),
        "a shared key-value head": Case(architecture="qwen2-one"),
        "a shared key-value head, dropout": Case(architecture="qwen2-one", fused=False, dropout=True),
        "experts": Case(architecture="qwen3_moe", data=2, experts=2, micro_batch_tokens=100, long=True),
        "context, experts": Case(architecture="qwen3_moe", context=2, experts=2, micro_batch_tokens=100, long=True),
        "context, experts, shared matrices, ppo": Case(
            architecture="qwen3_moe",
            context=2,
            experts=2,
            matrices="sharedOuter",
            critic=True,
            micro_batch_tokens=100,
            long=True,
        ),
        "context, KL, ppo": Case(context=2, critic=True, kl_coefficient=0.1, micro_batch_tokens=96),
        "context, lora": Case("lora", context=2, architecture="qwen3-tied", long=True),
        "context, gspo, selective": Case(context=2, recompute="selective", loss=GSPO, architecture="llama", long=True),
        "context, ppo, full": Case(context=2, recompute="full", critic=True, micro_batch_tokens=96, long=True),
        "context, MLP below, selective": Case(targets=BELOW, context=2, recompute="selective", long=True),
        "context, dropout, gspo": Case(context=2, fused=False, dropout=True, loss=GSPO, long=True),
        "context, dropout, selective": Case(
            "lora", context=2, fused=False, dropout=True, recompute="selective", long=True
        ),
        "context, dropout, ppo, full": Case(
            context=2, fused=False, dropout=True, recompute="full", critic=True, micro_batch_tokens=96, long=True
        ),
    },
    4: {
        "everything, KL": Case(architecture="qwen2-two", kl_coefficient=0.1),
        "lora, everything": Case("lora", architecture="qwen2-two"),
        "parts of layers, full": Case(targets=PARTS, recompute="full", architecture="qwen2-two"),
        "dropout": Case(fused=False, dropout=True, architecture="qwen2-two"),
        "lora, dropout": Case("lora", fused=False, dropout=True, architecture="qwen2-two"),
        "parts of layers, dropout": Case(targets=PARTS, fused=False, dropout=True, architecture="qwen2-two"),
        "context of four": Case(context=4, micro_batch_tokens=150, long=True),
        "context of four, experts": Case(context=4, micro_batch_tokens=150, architecture="qwen3_moe", long=True),
        "contexts of two shares, experts": Case(
            context=2, data=2, experts=4, micro_batch_tokens=150, architecture="qwen3_moe", long=True
        ),
        "contexts of two shares": Case(context=2, data=2, loss=GSPO, long=True),
        "context and layers": Case(context=2, kl_coefficient=0.1, long=True),
        "context and layers, full": Case(context=2, recompute="full", loss=GSPO, critic=True, long=True),
        "context and layers, dropout": Case("lora", context=2, fused=False, dropout=True, long=True),
        "four shares": Case(data=4, kl_coefficient=0.1, long=True),
        "four shares, experts": Case(
            data=4, experts=4, architecture="qwen3_moe", micro_batch_tokens=100, matrices="sharedOuter", long=True
        ),
        "two shares of layers": Case("lora", data=2, recompute="selective", loss=GSPO, long=True),
    },
    8: {
        "layers, contexts and shares": Case(context=2, data=2, kl_coefficient=0.1, micro_batch_tokens=96, long=True),
        "contexts of four shares, experts": Case(
            context=2, data=4, experts=4, architecture="qwen3_moe", micro_batch_tokens=150, long=True
        ),
    },
}
"""By the number of ranks. They are tensor parallel unless they share a context or the samples.

Four that are, or four of eight, share two key-value heads.
"""
