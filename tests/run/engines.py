"""Separate engines of a run: their processes, and what the run says about them."""

from __future__ import annotations

import re
import urllib.request
from typing import Any

import psutil

from run.command import Ended

SERVER = "vllm.entrypoints"
"""In the command line of an engine's process."""
CORRECTED = {"correction": {"preset": "decoupled_token_is"}}
"""What an algorithm needs whose samples are by earlier versions."""


def requests_of(process: psutil.Process) -> float:
    """How many requests an engine generates, by its metrics, for which it wants no key."""
    command = process.cmdline()
    port = command[command.index("--port") + 1]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        found = re.search(r"^vllm:num_requests_running{.*} (\S+)$", answer.read().decode(), re.MULTILINE)
    return float(found[1]) if found else 0.0


def warnings(ended: Ended) -> str:
    return "\n".join(line for line in (ended.stdout + ended.stderr).splitlines() if "warning: " in line)


def steps_of(ended: Ended) -> list[dict[str, Any]]:
    return [row for row in ended.rows if "reward_mean" in row]
