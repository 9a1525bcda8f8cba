"""This machine's GPUs, asked of NVIDIA's driver: without torch, and before any process uses them."""

from __future__ import annotations

import os
import subprocess

from lorarl_trainer.devices.base import Gpu

_QUERY = "--query-gpu=memory.total,compute_cap,name"
_SECONDS = 20.0
"""A driver without persistence mode starts the GPUs first."""


def largest_gpu() -> Gpu | None:
    """Return the GPU with the most memory, as if all of it were free; None if the driver names none."""
    return max(_gpus(), key=lambda gpu: gpu.total, default=None)


def gpu_count() -> int:
    """Return how many GPUs the driver names."""
    return len(_gpus())


def visible_gpus() -> list[str]:
    """Return the names by which CUDA_VISIBLE_DEVICES gives a process some of the GPUs that this one sees."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [str(number) for number in range(gpu_count())] if given is None else [one for one in given.split(",") if one]


def _gpus() -> list[Gpu]:
    try:
        ran = subprocess.run(
            ["nvidia-smi", _QUERY, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=True,
        )
        return [_gpu(line) for line in ran.stdout.splitlines() if line.strip()]
    except (OSError, subprocess.SubprocessError, ValueError):
        return []  # the workers look again, with CUDA


def _gpu(line: str) -> Gpu:
    """Return a GPU, given `81559, 9.0, NVIDIA H100 80GB HBM3`: mebibytes, compute capability and name."""
    mebibytes, capability, name = (part.strip() for part in line.split(",", 2))
    major, minor = map(int, capability.split("."))
    total = int(mebibytes) << 20
    return Gpu(total, total, name, (major, minor))
