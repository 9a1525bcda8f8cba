"""What a job takes of a GPU's or a machine's memory, worked out before anything loads.

Everything is one rank's share, in bytes. The sizes of the base model come from its files (`model_sizes.py`). What no
file says is counted by the formulas of `memory_lines.py`, or is an allowance with a name. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from lorarl_trainer.devices.base import Gpu, Host
from lorarl_trainer.models.model_sizes import ModelSizes
from lorarl_trainer.planning.adapter_size import AdapterSize
from lorarl_trainer.planning.execution import (
    ExecutionPlan,
    kv_bytes_per_token,
    kv_cache_bytes,
    routing_bytes_per_token,
    sequences_held,
)
from lorarl_trainer.planning.memory_lines import Line, engine_lines, host_engine_lines, trainer_lines

CONTEXT_BYTES = 1_500_000_000
"""Allowance: what CUDA, cuBLAS and NCCL take in a process."""
HOST_BYTES = 1_000_000_000
"""Allowance on CPU: what torch, Megatron and vLLM keep beside their tensors, and what malloc does not give back."""


@dataclass(frozen=True)
class MemoryPlan:
    """One rank's memory.

    Attributes:
        execution: the decisions that the memory follows from. Its KV cache holds all sequences at their longest, or as
            many as there is room for.
        gpu: what there is: a GPU, or on CPU one worker's share of the machine.
        kv_cache_least: the KV cache that one sequence needs at its longest.
    """

    execution: ExecutionPlan
    gpu: Gpu | Host
    lines: tuple[Line, ...]
    kv_cache_least: int

    def peak(self, phase: Literal["generation", "training"]) -> int:
        """Bytes that are taken in a phase."""
        return _peak(self.lines, phase)

    @property
    def peaks(self) -> tuple[int, int]:
        """Bytes that are taken while generating and while training."""
        return self.peak("generation"), self.peak("training")

    @property
    def needed(self) -> int:
        """Bytes that are taken in the larger phase."""
        return max(self.peaks)

    @property
    def least(self) -> int:
        """Bytes of the larger phase with a KV cache that holds one sequence."""
        return self.needed - self.execution.engine.kv_cache_bytes + self.kv_cache_least

    @property
    def fits(self) -> bool:
        """Whether both phases fit into what is free, and the engine can hold at least one sequence."""
        return self.needed <= self.gpu.free and self.execution.engine.kv_cache_bytes >= self.kv_cache_least

    def table(self) -> str:
        """Return the lines as a table for people."""
        rows = [
            ("", "GB", "when", "from"),
            *((line.what, gigabytes(line.bytes), line.phase, line.source) for line in self.lines),
        ]
        if self.execution.rollouts:
            rows.append(("generating, in all", gigabytes(self.peak("generation")), "", ""))
        rows.append(("training, in all", gigabytes(self.peak("training")), "", ""))
        where, source = ("on the GPU", "its driver") if isinstance(self.gpu, Gpu) else ("for a worker", "the system")
        rows.append((f"free {where}", gigabytes(self.gpu.free), "", f"{source}; {gigabytes(self.gpu.total)} in all"))
        return aligned(rows, numbers=1)


def make_plan(model: ModelSizes, adapter: AdapterSize, execution: ExecutionPlan, gpu: Gpu | Host) -> MemoryPlan:
    """Plan what a job takes of a GPU, or of a worker's share of a machine."""
    on_gpu = isinstance(gpu, Gpu)
    context = ("CUDA, cuBLAS, NCCL", CONTEXT_BYTES) if on_gpu else ("Python, torch, malloc", HOST_BYTES)
    lines = [*trainer_lines(model, adapter, execution), Line(*context, "always", "allowance")]
    if not execution.rollouts:
        return MemoryPlan(execution, gpu, tuple(lines), 0)
    engine = list((engine_lines if on_gpu else host_engine_lines)(model, adapter, execution))
    wanted = kv_cache_bytes(model, execution)
    room = execution.engine.kv_cache_most
    if isinstance(gpu, Gpu):
        room = _room_for_cache(execution, gpu, lines, engine)
    per_token, routing = kv_bytes_per_token(model, execution), routing_bytes_per_token(model, execution)
    given = max(0, min(wanted, room * per_token // (per_token + routing)))
    execution = replace(execution, engine=replace(execution.engine, kv_cache_bytes=given))
    if model.states:  # vLLM refuses to run more at a time than have blocks for their states
        held = int(sequences_held(model, execution, 0, 1))
        execution = replace(execution, engine=replace(execution.engine, most_at_once=max(1, held)))
    phase: Literal["generation", "always"] = "generation" if "kv_cache" in execution.engine.offload else "always"
    cache = Line("KV cache", given, phase, _describe_cache(model, execution, wanted))
    beside = []
    if routing:
        source = f"the experts of each token of the KV cache, {routing:,} bytes a token"
        beside.append(Line("routing of the rollout", given * routing // per_token, "always", source))
    least = kv_cache_bytes(model, execution, sequences=1)
    return MemoryPlan(execution, gpu, (*lines, *engine, cache, *beside), least)


def _room_for_cache(execution: ExecutionPlan, gpu: Gpu, trainer: Sequence[Line], engine: Sequence[Line]) -> int:
    """Return what a GPU has for the KV cache: all that is free while it is there, up to the manifest's share."""
    lines, given_up = (*trainer, *engine), "kv_cache" in execution.engine.offload
    room = gpu.free - _peak(lines, "generation")
    if not given_up:
        room = min(room, gpu.free - _peak(lines, "training"))
    if execution.engine.memory_fraction is None:
        return room
    return min(room, int(execution.engine.memory_fraction * gpu.total) - sum(line.bytes for line in engine))


def _peak(lines: Sequence[Line], phase: Literal["generation", "training"]) -> int:
    return sum(line.bytes for line in lines if line.phase in ("always", phase))


def _describe_cache(model: ModelSizes, execution: ExecutionPlan, wanted: int) -> str:
    per_token = kv_bytes_per_token(model, execution)
    told = f"{execution.engine.sequences} sequences of {execution.longest} tokens, {per_token:,} bytes a token"
    if execution.engine.kv_cache_bytes >= wanted:
        return told
    holds, half = (
        int(sequences_held(model, execution, 0, tokens)) for tokens in (execution.longest, -(-execution.longest // 2))
    )
    return (
        f"{told}; holds {holds} at their longest, {min(half, execution.engine.sequences)} at half of it; "
        f"all at their longest: {gigabytes(wanted)}"
    )


def aligned(rows: Sequence[Sequence[str]], numbers: int | None = None) -> str:
    """Return rows as columns for people. The column `numbers` is aligned on the right, the last one ends freely."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if column == numbers else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    return "\n".join(lines)


def gigabytes(size: int) -> str:
    """Write a number of bytes in GB, for people."""
    return f"{size / 1e9:.1f}"
