"""A worker takes a process that Ray started before it was asked for one, and that has begun to import."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from lorarl_api.ahead import PRELOAD
from lorarl_api.load import load_job
from lorarl_trainer.launch.ray_cluster import RayCluster
from lorarl_trainer.timing import Span, StartClock
from lorarl_trainer.workers import ahead
from lorarl_trainer.workers.nodes import Nodes

ROOT = Path(__file__).parents[2]


async def begins(folder: Path) -> tuple[list[Span] | None, list[Span] | None]:
    """Start a job's worker; return the parts of its process that imports ahead, and the same of a task's process."""
    import ray

    async with RayCluster(
        load_job(ROOT / "examples/sft-cpu.yaml").spec, folder, StartClock("driver", "process")
    ) as here:
        workers = await here.workers()
        (worker,), nodes = workers._actors, workers._nodes
        assert isinstance(nodes, Nodes)
        of_worker = worker.__ray_call__.remote(lambda _: ahead.parts() or None)
        of_task = nodes.call(lambda: ahead.parts() or None)[0]
        return await asyncio.to_thread(ray.get, [of_worker, of_task])


def test_a_worker_takes_a_process_that_imports_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    of_worker, of_task = asyncio.run(begins(tmp_path))
    assert of_worker is not None, "the worker's process imports ahead"
    assert of_task is None, "a task leaves that process to the worker"
    assert PRELOAD not in os.environ
