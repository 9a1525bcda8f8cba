"""An agent for `environment.agent`: each episode is a task of a taskset of verifiers 0.4, with this run's model.

verifiers needs an older openai than vLLM, so it has a Python environment by itself:

    VERIFIERS_PYTHON    its interpreter
    VERIFIERS_TASKSET   the id of an installed taskset, such as guess-v1 for the package guess_v1
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("play_task.py")


async def play(row: Mapping[str, Any], llm: Any) -> dict[str, float]:
    """Play the task with the number of the row's seed, from 0 on. Raises RuntimeError with what verifiers says."""
    command = [os.environ["VERIFIERS_PYTHON"], PROGRAM, os.environ["VERIFIERS_TASKSET"], str(row["seed"]), llm.model]
    pipe = asyncio.subprocess.PIPE
    program = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    said, errors = await program.communicate()
    if program.returncode:
        raise RuntimeError(errors.decode(errors="replace").strip()[-400:])
    result: dict[str, float] = json.loads(said.splitlines()[-1])
    return result
