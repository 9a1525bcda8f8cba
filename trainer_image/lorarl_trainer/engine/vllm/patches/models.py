"""Models whose adapters vLLM does not serve by itself, or not beside a trainer of the same model.

- vLLM computes some architectures with layers that take adapters, but does not say so of the model.
- It computes others with Transformers' own modules, whose linear layers it replaces. To compile such a model, it
  changes the decoder's class for the whole process, and so the trainer's. lorarl compiles no model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import new_class
from typing import Any

from lorarl_trainer.engine.vllm.names import AdapterModels
from lorarl_trainer.engine.vllm.patches.replaced import replaced

FUSED: Mapping[str, Mapping[str, list[str]]] = {
    "GPT2LMHeadModel": {"c_attn": ["c_attn"]},
    "StableLmForCausalLM": {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]},
}
"""The layers of Hugging Face's that a fused layer of vLLM's is made of, of architectures that do not say it."""


def with_adapters(architecture: str, model: type) -> type:
    """Return vLLM's class for an architecture, as one that takes adapters."""
    if architecture not in FUSED or getattr(model, "supports_lora", False):
        return model
    supports: Any = AdapterModels.SupportsLoRA

    said = {"packed_modules_mapping": dict(FUSED[architecture]), "__module__": model.__module__}
    return new_class(model.__name__, (model, supports), exec_body=lambda namespace: namespace.update(said))


@contextmanager
def separate_classes() -> Iterator[None]:
    """Let Transformers' classes stay as they are when an engine starts within the block."""
    with replaced(AdapterModels.decorate, lambda self, **_: None):
        yield
