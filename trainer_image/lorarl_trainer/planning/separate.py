"""What a separate engine takes: it has whole GPUs, and its copy of the base model, with no trainer beside it."""

from __future__ import annotations

from dataclasses import replace

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.devices.base import Gpu, Host
from lorarl_trainer.errors import InputError
from lorarl_trainer.models.model_sizes import ModelSizes
from lorarl_trainer.planning.adapter_size import AdapterSize
from lorarl_trainer.planning.candidates import HOST_KV_CACHE
from lorarl_trainer.planning.execution import EnginePlan, ExecutionPlan, kv_cache_bytes, sequences_held
from lorarl_trainer.planning.memory import CONTEXT_BYTES, HOST_BYTES, MemoryPlan, aligned, gigabytes
from lorarl_trainer.planning.memory_lines import Line, engine_lines, host_engine_lines
from lorarl_trainer.planning.usual import MOST_SEQUENCES, decide
from lorarl_trainer.pods.drain import in_a_pod


def sequences_at_once(spec: LoRARLJobSpec) -> int:
    """Return how many completions a separate engine generates at a time: its share of all steps that are begun."""
    engines = spec.separate_engines
    assert engines is not None, "a job without them starts none"
    steps = spec.rollout.max_staleness + 1
    completions = spec.rollout.prompts_per_step * spec.algorithm.effective_group_size * steps
    return min(-(-completions // engines.count), MOST_SEQUENCES)


def processes_on_host(spec: LoRARLJobSpec) -> int:
    """Return how many processes share a machine without GPUs: the workers, and the engines that have no own pods."""
    engines = spec.separate_engines.count if spec.separate_engines and not in_a_pod() else 0
    return spec.workers_per_node + engines


def processes_on_engines_host(spec: LoRARLJobSpec) -> int:
    """Return how many processes share an engine's machine: itself alone in its own pod."""
    return 1 if in_a_pod() else processes_on_host(spec)


def plan_engine(spec: LoRARLJobSpec, model: ModelSizes, there: Gpu | Host) -> MemoryPlan | None:
    """Plan what a separate engine takes of each of its GPUs, or of the machine; None for a job without any.

    `there`: a GPU, or on CPU the machine, of which every engine and every worker has an equal share.
    """
    engines = spec.separate_engines
    if engines is None:
        return None
    execution = _execution(spec, model, there)
    size, on_gpu = AdapterSize.of(spec.adapter, model), isinstance(there, Gpu)
    context = ("CUDA, cuBLAS, NCCL", CONTEXT_BYTES) if on_gpu else ("Python, torch, malloc", HOST_BYTES)
    lines = [Line(*context, "always", "allowance")]
    lines += (engine_lines if on_gpu else host_engine_lines)(model, size, execution)
    taken, wanted = sum(line.bytes for line in lines), kv_cache_bytes(model, execution)
    if isinstance(there, Gpu):
        cache = max(0, int(engines.gpu_memory_fraction * there.total) - taken)
    else:
        shares = processes_on_engines_host(spec)
        there, cache = Host(there.total // shares, there.free // shares), min(wanted, HOST_KV_CACHE)
    execution = replace(execution, engine=replace(execution.engine, kv_cache_bytes=cache))
    held = int(sequences_held(model, execution, 0, execution.longest))
    lines.append(Line("KV cache", cache, "always", f"holds {held:,} sequences of {execution.longest} tokens"))
    return MemoryPlan(execution, there, tuple(lines), kv_cache_bytes(model, execution, sequences=1))


def require_engine_fit(spec: LoRARLJobSpec, model: ModelSizes, there: Gpu | Host) -> None:
    """Refuse an engine in its own pod that its GPUs, or its machine, have no room for.

    They may be unlike the trainer's.

    Raises:
        InputError: the message has the table.
    """
    memory = plan_engine(spec, model, there)
    if memory is None or memory.fits:
        return
    on_gpu, field = isinstance(there, Gpu), "spec.rollout.separateEngines"
    larger, where = ("GPUs with more memory", "on each of its GPUs") if on_gpu else ("more memory", "in its pod")
    ways = f"Give the engines' pods {larger} by spec.cluster.podTemplateOverrides.engine"
    ways += f", or raise {field}.tensorParallelSize or gpuMemoryFraction" if on_gpu else ""
    raise InputError(
        field,
        f"an engine that needs {gigabytes(memory.least)} GB {where} at the least",
        f"at most the {gigabytes(memory.gpu.free)} GB that are free there",
        f"{ways}.\n{engine_table(memory)}",
    )


def _execution(spec: LoRARLJobSpec, model: ModelSizes, there: Gpu | Host) -> ExecutionPlan:
    """Return how an engine runs, but for the size of its KV cache."""
    engines = spec.separate_engines
    assert engines is not None, "a job without them starts none"
    trained = decide(spec, model, there if isinstance(there, Gpu) else None)
    ranks, sequences = engines.tensor_parallel_size, sequences_at_once(spec)
    engine = EnginePlan(
        sequences=sequences,
        step_tokens=min(sequences * trained.longest, trained.engine.step_tokens),
        memory_fraction=engines.gpu_memory_fraction,
        offload=frozenset(),
        kv_block_tokens=trained.engine.kv_block_tokens,
        adapters=spec.rollout.max_staleness + 1,
    )
    layout = replace(trained.layout, engine_ranks=ranks, base_shards=1, shared_base=False, unshared=None)
    return replace(trained, rollouts=True, layout=layout, engine=engine)


def engine_title(spec: LoRARLJobSpec) -> str:
    """Return the line above `engine_table`."""
    engines = spec.separate_engines
    assert engines is not None, "a job without them has none"
    if not spec.on_gpu:
        return f"memory of each of {engines.count} separate engine(s):"
    first = spec.cluster.gpus_per_node
    split = f", each split over {engines.tensor_parallel_size}" if engines.tensor_parallel_size > 1 else ""
    numbers = f"GPU {first}" if spec.engine_gpus == 1 else f"GPUs {first} to {first + spec.engine_gpus - 1}"
    return f"memory of each GPU of {engines.count} separate engine(s){split}, on {numbers} of those that are visible:"


def engine_table(memory: MemoryPlan) -> str:
    """Return what an engine takes as a table for people."""
    where = "on the GPU" if isinstance(memory.gpu, Gpu) else "for an engine"
    rows = [
        ("", "GB", "from"),
        *((line.what, gigabytes(line.bytes), line.source) for line in memory.lines),
        ("in all", gigabytes(memory.needed), ""),
        (f"free {where}", gigabytes(memory.gpu.free), f"{gigabytes(memory.gpu.total)} in all"),
    ]
    return aligned(rows, numbers=1)
