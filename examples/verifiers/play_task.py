"""Play one task of a taskset with the model at OPENAI_BASE_URL; print its reward and metrics as JSON.

Run by a Python that has verifiers 0.4.0 and the taskset: `play_task.py TASKSET NUMBER MODEL`.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import sys
from typing import Any

from verifiers.v1.clients import ModelContext
from verifiers.v1.configs.client import EvalClientConfig
from verifiers.v1.runtimes.subprocess import SubprocessRuntime
from verifiers.v1.types import SamplingConfig
from verifiers.v1.utils.loaders import load_environment, resolve_env_config


async def with_this_python(
    runtime: Any, script: str | bytes, env: dict[str, str] | None = None, *, activate: bool = True
) -> list[str]:
    """Return the command of a harness's program, which needs no package beyond those of verifiers.

    verifiers itself has uv make an environment for it, from the package index.
    """
    source = script.encode() if isinstance(script, str) else script
    path = f"{hashlib.sha256(source).hexdigest()}.py"
    await runtime.write(path, source)
    return [sys.executable, path]


async def play(taskset: str, number: int, model: str) -> dict[str, float]:
    """Return the reward of one task, and its metrics."""
    agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    environment = load_environment(resolve_env_config({"taskset": {"id": taskset}, "agent": agent}))
    task = next(itertools.islice(environment.taskset, number, None), None)
    if task is None:
        raise SystemExit(f"{taskset} has no task {number}; the first is 0")
    client = EvalClientConfig(base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY")
    async with environment.serving():
        context = ModelContext(client=client, model=model, sampling=SamplingConfig())
        episode = await environment.run_episode(task, context)
    failed = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if failed or not episode.ok:
        raise SystemExit("; ".join(f"{error.type}: {error.message}" for error in failed) or "the episode is not ok")
    (trace,) = episode.traces
    found = {name: value for name, value in trace.metrics.items() if isinstance(value, int | float)}
    return {**found, "reward": trace.reward}


if __name__ == "__main__":
    SubprocessRuntime.prepare_uv_script = with_this_python
    print(json.dumps(asyncio.run(play(sys.argv[1], int(sys.argv[2]), sys.argv[3]))))
