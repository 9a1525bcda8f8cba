"""The rules of `model.quantization`, between the parts of a job's spec."""

from __future__ import annotations

from collections.abc import Iterator

from lorarl_api.rules import Rule


def quantization_rules() -> Iterator[Rule]:
    """Yield what a job with a quantized base may not ask for."""
    yield _quantized(
        "trainer.backend",
        "!has(self.trainer.backend) || self.trainer.backend == 'fsdp'",
        "be fsdp with model.quantization, since Megatron's layers take no quantized weights",
        "Set trainer.backend: fsdp, or remove it.",
    )
    yield _quantized(
        "adapter.dora",
        "!self.adapter.dora",
        "be false with model.quantization, since no lengths of quantized rows were compared",
        "Remove dora, or model.quantization.",
    )
    yield _quantized(
        "rollout.tensorParallelSize",
        "!has(self.rollout.tensorParallelSize) || self.rollout.tensorParallelSize == 1",
        "be absent or 1 with model.quantization: trainer and engine use the same whole tensors",
        "Remove rollout.tensorParallelSize, or model.quantization.",
    )


def _quantized(field: str, cel: str, message: str, hint: str) -> Rule:
    return Rule(field, f"self.model.quantization == 'none' || {cel}", message, hint)
