"""The parts of a running engine that lorarl reaches into. Each is checked for what `slices` says of it."""

from __future__ import annotations

from typing import Any

from lorarl_trainer.engine.vllm import model_slices, slices
from lorarl_trainer.engine.vllm.binding import checked
from lorarl_trainer.engine.vllm.names import AdapterSlots, GpuWorker, Requests


def engine_core(llm_engine: Any) -> slices.EngineCore:
    """Return the core of a `vllm.LLMEngine` that runs in this process."""
    engine = checked(llm_engine, slices.LLMEngine, Requests)
    core = checked(engine.engine_core, slices.InprocClient, Requests).engine_core
    return checked(core, slices.EngineCore, Requests)


def worker(llm_engine: Any) -> slices.Worker:
    """Return the worker of a `vllm.LLMEngine` that runs in this process."""
    workers: list[slices.Worker] = []
    llm_engine.collective_rpc(workers.append)
    return checked(workers[0], slices.Worker, GpuWorker)


def adapter_manager(of: slices.Worker) -> slices.LoRAModelManager:
    """Return what keeps the adapters of a worker."""
    runner = checked(of.model_runner, slices.ModelRunner, AdapterSlots)
    loras = checked(runner.lora_manager, slices.WorkerLoRAManager, AdapterSlots)
    return checked(loras._adapter_manager, slices.LoRAModelManager, AdapterSlots)


def name_mapper(model: Any) -> model_slices.WeightsMapper | None:
    """Return what turns names of Hugging Face's into those of a model of vLLM's; None if it has them.

    Layers that vLLM fuses keep their own names.
    """
    mapper: model_slices.WeightsMapper | None = getattr(model, "hf_to_vllm_mapper", None)
    return None if mapper is None else mapper.get_unstacked_mapper()
