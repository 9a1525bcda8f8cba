"""The GPU tier: Transformer Engine, vLLM with CUDA graphs and NCCL on real GPUs. Skipped, with this reason, where there is none."""

from __future__ import annotations

import os

from lorarl_trainer.platforms.cuda import CudaPlatform

os.environ.update(CudaPlatform().environment(threads=8))

import pytest
import torch

from support.colocated import colocated, model_folder  # noqa: F401  # fixtures


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.path.parts:
                item.add_marker(pytest.mark.skip(reason="this machine has no CUDA GPU"))
