"""The trainer tier: the real Megatron, Megatron-Bridge, vLLM and PEFT on the CPU, in the test's process."""

from __future__ import annotations

import os

import pytest

from lorarl_trainer.devices.cpu import CpuDevice
from support.cores import take_share

os.environ.update(CpuDevice().environment(threads=min(2, take_share())))  # before torch is imported

import torch  # noqa: F401  # before any tokenizer: the driver's loader keeps torch out of a process without it

from support.colocated import backend, colocated, model_folder  # noqa: F401  # fixtures


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that are marked with `both_backends` with either."""
    marker = metafunc.definition.get_closest_marker("both_backends")
    if marker and "backend" in metafunc.fixturenames:
        marks = [] if marker.kwargs.get("quick") else [pytest.mark.long]
        metafunc.parametrize("backend", ["megatron", pytest.param("fsdp", marks=marks)], indirect=True)
