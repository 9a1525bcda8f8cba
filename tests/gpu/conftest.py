"""The GPU tier: Transformer Engine, vLLM with CUDA graphs and NCCL on real GPUs. Skipped if there is none."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from lorarl_trainer.devices.cuda import CudaDevice

os.environ.update(CudaDevice().environment(threads=8))

import pytest
import torch

from support.colocated import backend, colocated, model_folder  # noqa: F401  # fixtures
from support.in_process import Colocated
from support.shaped_models import save_shape
from unit.trainer.planning.shapes import SHAPES


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        interpreted = ("test_kernels.py", "test_sampler.py") if os.environ.get("TRITON_INTERPRET") == "1" else ()
        for item in items:
            if "gpu" in item.path.parts and item.path.name not in interpreted:
                item.add_marker(pytest.mark.skip(reason="this machine has no CUDA GPU"))


@pytest.fixture
def on_gpu(colocated: Callable[..., Colocated]) -> Callable[..., Colocated]:  # noqa: F811  # the fixture
    """Starts workers on one GPU. vLLM takes little of it, so that several fit; a tiny model needs no more."""
    gpu = {"cluster__gpusPerNode": 1, "rollout__gpuMemoryFraction": 0.04}
    return lambda architecture="qwen3-gpu", **changes: colocated(architecture, **(gpu | changes))


@pytest.fixture(scope="session")
def shape(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes models with the shape of real ones, each once: the largest takes 15 GB of the disk."""
    folder = tmp_path_factory.mktemp("shapes")
    return lambda name: save_shape(SHAPES[name], folder / name)
