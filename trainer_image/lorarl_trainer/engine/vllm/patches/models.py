"""The model that vLLM starts: its class from this process, with adapters, and beside a trainer of the same model.

- vLLM imports each architecture's class in another process, to leave the GPU to processes that it starts later. Here
  the GPU is already in use.
- Its engines of one process share their rotary embeddings, and ERNIE's model changes them. Here each has its own.
- vLLM computes some architectures with layers that take adapters, but does not say so of the model.
- It computes others with Transformers' own modules, whose linear layers it replaces. To compile such a model, it
  changes the decoder's class for the whole process, and so the trainer's. lorarl compiles no model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import new_class
from typing import Any

from lorarl_trainer.engine.vllm.names import AdapterModels, Models
from lorarl_trainer.engine.vllm.patches.replaced import replaced

FUSED: Mapping[str, Mapping[str, list[str]]] = {
    "GPT2LMHeadModel": {"c_attn": ["c_attn"]},
    "StableLmForCausalLM": {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]},
}
"""The layers of Hugging Face's that a fused layer of vLLM's is made of, of architectures that do not say it."""


@contextmanager
def trained_model(architectures: Sequence[str]) -> Iterator[None]:
    """Let an engine that starts within the block have a model of these architectures, as its config.json names them."""
    registry, transformers = Models.ModelRegistry, False
    for architecture in architectures:
        if known := registry.models.get(architecture):
            model = with_adapters(architecture, known.load_model_cls())
            transformers = transformers or ".models.transformers" in model.__module__
            registry.register_model(architecture, model)
    with separate_classes() if transformers else nullcontext(), replaced(Models.rotary_embeddings, {}):
        yield


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
