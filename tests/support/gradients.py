"""Gradients in Hugging Face names, which are the same on any layout of ranks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from lorarl_trainer.backends.megatron.layout import AdapterLayout
from lorarl_trainer.devices.base import Device
from lorarl_trainer.lora.random_tensors import uniform
from lorarl_trainer.samples.types import LossChoice

from .ranks import run_ranks
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
    """

    adapter_type: str = "canonical_lora"
    targets: tuple[str, ...] = ("all-linear",)
    recompute: str = "none"
    kl_coefficient: float = 0.0
    fused: bool = True
    dropout: bool = False
    architecture: str = "qwen2"

    def gradients(self, device: Device, models: Path, precision: str, ranks: int = 1) -> dict[str, torch.Tensor]:
        """Return the gradients of one batch, and its loss as "loss", on one of so many tensor-parallel ranks.

        The model is in the folder `models`, under its architecture's name.
        """
        trainer = BareTrainer(
            device,
            models / self.architecture,
            precision,
            self.adapter_type,
            self.recompute,
            targets=self.targets,
            packed=True,
            fused=self.fused,
            tensor_parallel=ranks,
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
        loss, _ = trainer.loss_and_gradients(grouped_samples(VOCABULARY, prompts=6), loss=choice)
        found = layout.gather(trainer.optimizer.gradients)
        return {name: tensor.float().cpu().clone() for name, tensor in found.items()} | {"loss": torch.tensor([loss])}


def write_gradients_of_ranks(folder: Path, ranks: int, gpus: int, precision: str) -> None:
    """Write the gradients of all cases on so many ranks; `file_of` says where. The models are in the folder, too."""
    script = Path(__file__).with_name("rank_gradients.py")
    run_ranks(script, folder, ranks, folder, gpus, precision, seconds=300, count=ranks)


def file_of(case: str, precision: str) -> str:
    """Return the name of the file with a case's gradients."""
    return f"{precision}-{list(CASES).index(case)}.safetensors"


class _WithoutLargeInputs(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (x < 0.7) / 0.8


CASES = {
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
}
