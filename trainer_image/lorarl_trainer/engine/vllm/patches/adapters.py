"""The layers with adapters, ours in the place of vLLM's.

They are in `linear.py`, `many_adapters.py`, `cpu_experts.py` and `gpu_experts.py`.

vLLM has no door for LoRA layers, for the adapters that CUDA graphs are captured with (`cudagraph_specialize_lora` keeps
a graph without an adapter), or for the lookup before a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from lorarl_trainer.engine.vllm import binding, gpu_slices, names, parts, slices
from lorarl_trainer.engine.vllm.names import AdapterGraphs, AdapterLayers, AdapterLookup, CpuExperts
from lorarl_trainer.engine.vllm.patches import cpu_experts, gpu_experts
from lorarl_trainer.engine.vllm.patches.expert_buffers import expert_buffers
from lorarl_trainer.engine.vllm.patches.linear import linear_classes
from lorarl_trainer.engine.vllm.patches.many_adapters import many_adapter_classes
from lorarl_trainer.engine.vllm.patches.replaced import replaced


@contextmanager
def adapter_layers(expert_rank: int | None, adapters: int) -> Iterator[None]:
    """Let an engine that starts within the block build its model with these layers in place of vLLM's own.

    `expert_rank` is the rank of the adapter on experts; None for a model without. `adapters`: at a time, in the engine.
    """
    with ExitStack() as stack:
        classes = _linear_classes(adapters) if AdapterLayers.is_on else ()
        if expert_rank is not None and names.on_gpu():
            classes += (gpu_experts.one_adapter_experts(expert_rank),)
        elif expert_rank is not None:
            classes += (cpu_experts.one_adapter_experts(),)
            stack.enter_context(replaced(CpuExperts.CPUFusedMOE, cpu_experts.unpacked_experts()))
        if names.on_gpu() and AdapterLayers.is_on and AdapterGraphs.is_on:
            # Every request has an adapter, so CUDA graphs of batches without one are never used.
            capture_cases = AdapterGraphs.get_lora_capture_cases
            stack.enter_context(replaced(capture_cases, lambda lora, _: [lora.max_loras + 1]))
        if classes:  # the first class that fits a layer is used
            place = AdapterLayers.all_lora_classes
            stack.enter_context(replaced(place, (*classes, *getattr(*place))))
        yield


def _linear_classes(adapters: int) -> tuple[type, ...]:
    if adapters == 1:
        return linear_classes()
    return () if names.on_gpu() else many_adapter_classes()


def skip_adapter_lookup(worker: slices.Worker, *, with_experts: bool) -> None:
    """If every layer is one of these, stop working out each token's adapter before a step."""
    manager, ours = parts.adapter_manager(worker), linear_classes()
    for module in manager.modules.values():
        if isinstance(module, ours):
            binding.checked(module, slices.LoRALayer, AdapterLayers)
    if with_experts:
        ours += (expert_buffers(),)
    if all(isinstance(module, ours) for module in manager.modules.values()):
        binding.checked(manager, slices.AdapterMapping, AdapterLookup)._set_adapter_mapping = _ignore
        state = getattr(worker.model_runner, "lora_state", None)  # only the V2 runner has it
        if state and AdapterGraphs.is_on:
            binding.checked(state, gpu_slices.LoraState, AdapterGraphs)
            get_adapters = partial(_adapter_in_use, state)
            state.get_activate_loras = get_adapters
            state.make_lora_inputs = lambda requests, *_: ((), (), get_adapters(requests))


def _ignore(mapping: Any) -> None:
    pass


def _adapter_in_use(state: gpu_slices.LoraState, requests: list[str]) -> set[slices.LoRARequest]:
    """Return the adapter that all requests of a step have, as a set of one, or an empty set."""
    return {adapter} if (adapter := state.lora_requests.get(requests[0])) else set()
