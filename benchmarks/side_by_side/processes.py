"""The environment of the benchmarks' processes, and the GPU that they use."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = tuple(str(ROOT / folder) for folder in ("benchmarks", "crds", "trainer_image"))
"""Where the product and the benchmark are imported from."""


def environment(gpus: Sequence[int]) -> dict[str, str]:
    """Return the environment of a process that sees these GPUs, by their numbers on the machine; empty changes none."""
    inherited = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))} if gpus else {}
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*PACKAGES, *inherited]), **visible}


def device(gpu: int) -> str:
    """Return the name of a GPU."""
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", f"--id={gpu}"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
