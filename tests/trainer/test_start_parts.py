"""A worker reports how long each part of its start took."""

import asyncio
from collections.abc import Callable
from itertools import pairwise

from support.in_process import Colocated
from support.loop_runs import run_in_process


def test_a_worker_times_all_it_does_up_to_its_first_update(colocated: Callable[..., Colocated]) -> None:
    worker = colocated(trainer__steps=2)
    asyncio.run(run_in_process(worker))
    parts = {part.name: part for part in worker.worker.startup_spans()}
    in_order = [
        "worker process",
        "imports",
        "device",
        "trainer",
        "engine",
        "adapter",
        "first sync",
        "first generation",
        "first update",
    ]
    assert [name for name in parts if "/" not in name] == in_order
    for earlier, later in pairwise(in_order):
        assert parts[earlier].end <= parts[later].begin
    within = {f"engine/{name}" for name in ("device", "load", "KV cache", "warm-up", "sync plan")}
    within |= {f"imports/{name}" for name in ("torch", "trainer", "vLLM")} | {
        "trainer/load",
        "trainer/layout",
        "first generation/first token",
    }
    assert {name for name in parts if "/" in name} == within
    for name in within:
        whole = parts[name.partition("/")[0]]
        assert whole.begin <= parts[name].begin <= parts[name].end <= whole.end
