"""Gradients in Hugging Face names, which are the same on any layout of ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file

from lorarl_trainer.backends.layout import AdapterLayout
from lorarl_trainer.devices.base import Device
from lorarl_trainer.lora.random_tensors import uniform
from lorarl_trainer.samples.types import LossChoice

from .tiny_models import VOCABULARY
from .training import BareTrainer, grouped_samples

ATTENTION, MLP = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")
PARTS = ("q_proj", "v_proj", "up_proj", "o_proj")


@dataclass(frozen=True)
class Case:
    """What is trained, and how.

    Attributes:
        fused: in fused layers; otherwise in Megatron's own, of which an adapter's dropout has need.
        architecture: the tiny model.
        dropout: drop large inputs of the adapters: a random choice would be another one on each layout.
        budget: the most tokens of a micro-batch.
        data_parallel: the ranks share the experts of each layer, and nothing else: each has samples of its own.
    """

    adapter_type: str = "canonical_lora"
    targets: tuple[str, ...] = ("all-linear",)
    recompute: str = "none"
    kl_coefficient: float = 0.0
    fused: bool = True
    dropout: bool = False
    architecture: str = "qwen2"
    data_parallel: bool = False
    budget: int = 16_384

    def gradients(self, device: Device, models: Path, precision: str, ranks: int = 1) -> dict[str, torch.Tensor]:
        """Return the gradients of one batch, and its loss as "loss", on one of so many ranks.

        The model is in the folder `models`, under its architecture's name.
        """
        trainer = BareTrainer(
            device,
            models / self.architecture,
            precision,
            self.adapter_type,
            self.recompute,
            targets=self.targets,
            budget=self.budget,
            packed=True,
            fused=self.fused,
            tensor_parallel=1 if self.data_parallel else ranks,
            expert_parallel=ranks if self.data_parallel else 1,
        )
        layout = AdapterLayout(trainer.model)
        adapter = {}
        for target in trainer.model.targets:
            for name in target.hf_names:
                down, up = f"{name}.lora_A.weight", f"{name}.lora_B.weight"
                adapter[down] = uniform(layout.shapes[down], 0.1, target.hf_names[0])  # one A for the parts of `lora`
                adapter[up] = uniform(layout.shapes[up], 0.1, name)
        with torch.no_grad():
            torch._foreach_copy_(list(trainer.model.parameters.values()), layout.scatter(adapter))
        if self.dropout:
            for module in trainer.model.module.modules():
                if hasattr(module, "linear_in"):
                    module.dropout = _WithoutLargeInputs()
        choice = LossChoice("policy_gradient", clip_range=0.2, kl_coefficient=self.kl_coefficient)
        samples = grouped_samples(VOCABULARY, prompts=6)
        total = sum(sample.response_length for sample in samples)
        if self.data_parallel and ranks > 1:
            # The second rank has few, and so fewer micro-batches.
            samples = samples[:-3] if dist.get_rank() == 0 else samples[-3:]
        loss, _ = trainer.loss_and_gradients(samples, loss=choice, total_tokens=total)
        trainer.optimizer._sum_over_workers()
        found = layout.gather(trainer.optimizer.gradients)
        return {name: tensor.float().cpu().clone() for name, tensor in found.items()} | {"loss": torch.tensor([loss])}


def gradients_of_ranks(
    folder: Path, model_of: Callable[[str], Path], ranks: int, gpus: int, precision: str
) -> dict[str, dict[str, torch.Tensor]]:
    """Return the gradients of all of `CASES[ranks]` on so many ranks, each in a process of its own.

    `folder` gets them, and the models that `model_of` finds by their architectures.
    """
    for architecture in {case.architecture for case in CASES[ranks].values()}:
        if not (folder / architecture).exists():
            (folder / architecture).symlink_to(model_of(architecture))
    script, tests = Path(__file__).with_name("rank_gradients.py"), Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), *sys.path])}
    command = [sys.executable, *(str(part) for part in (script, ranks, folder, gpus, precision))]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr[-4000:]
    return {name: load_file(folder / file_of(number)) for number, name in enumerate(CASES[ranks])}


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
        "MLP below, selective": Case(
            targets=("*.layers.1.self_attn.*", "*.mlp.*"), recompute="selective", kl_coefficient=0.1
        ),
        "dropout": Case(fused=False, dropout=True, kl_coefficient=0.1),
        "lora, dropout, selective": Case("lora", fused=False, dropout=True, recompute="selective"),
        "parts of layers, dropout, full": Case(targets=PARTS, fused=False, dropout=True, recompute="full"),
        "a shared key-value head": Case(architecture="qwen2-one"),
        "a shared key-value head, dropout": Case(architecture="qwen2-one", fused=False, dropout=True),
        "experts, data parallel": Case(architecture="qwen3_moe", data_parallel=True, budget=100),
        "experts": Case(architecture="qwen3_moe"),
    },
    4: {
        "everything, KL": Case(architecture="qwen2-two", kl_coefficient=0.1),
        "lora, everything": Case("lora", architecture="qwen2-two"),
        "parts of layers, full": Case(targets=PARTS, recompute="full", architecture="qwen2-two"),
        "dropout": Case(fused=False, dropout=True, architecture="qwen2-two"),
        "lora, dropout": Case("lora", fused=False, dropout=True, architecture="qwen2-two"),
        "parts of layers, dropout": Case(targets=PARTS, fused=False, dropout=True, architecture="qwen2-two"),
    },
}
"""By the number of ranks. Four share two key-value heads."""
