"""The rules of `model.quantization`, each broken once and kept once."""

from __future__ import annotations

from unit.contract.manifests import SFT, Case

FP8 = {"spec.model.quantization": "fp8"}
NF4 = {"spec.model.quantization": "nf4"}

QUANTIZATION_CASES = [
    Case(
        "a quantized base not with Megatron",
        FP8 | {"spec.trainer.backend": "megatron"},
        FP8 | {"spec.trainer.backend": "fsdp"},
        "spec.trainer.backend",
        "Set trainer.backend: fsdp",
    ),
    Case(
        "a quantized base without DoRA",
        SFT | NF4 | {"spec.adapter.dora": True},
        SFT | NF4,
        "spec.adapter.dora",
        "Remove dora, or model.quantization.",
    ),
    Case(
        "an engine with a quantized base is not split",
        FP8 | {"spec.rollout.tensorParallelSize": 2, "spec.cluster.gpusPerNode": 2},
        FP8 | {"spec.rollout.tensorParallelSize": 1, "spec.cluster.gpusPerNode": 2},
        "spec.rollout.tensorParallelSize",
        "Remove rollout.tensorParallelSize",
    ),
]
