"""The trainer tier: the real Megatron, Megatron-Bridge, vLLM and PEFT on the CPU, in the test's process."""

from __future__ import annotations

import os

import pytest

from lorarl_trainer.devices.cpu import CpuDevice
from support.cores import take_share

os.environ.update(CpuDevice().environment(threads=min(2, take_share())))  # before torch is imported

import torch  # noqa: F401  # before any tokenizer: the driver's loader keeps torch out of a process without it

from support.both_backends import with_either_backend, without_shared_adapters
from support.colocated import backend, colocated, model_folder  # noqa: F401  # fixtures


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """See `support.both_backends`."""
    with_either_backend(metafunc, scope="function")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """See `support.both_backends`."""
    without_shared_adapters(items)
