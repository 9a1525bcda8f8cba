"""The GPU tier: Transformer Engine, vLLM with CUDA graphs and NCCL on real GPUs. Skipped if there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


@pytest.fixture
def step_memory(shape: Callable[[str], Path], tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Says what the last of three steps took, in GB, and what was planned. See step_memory.py for the arguments."""

    def measured(name: str, fields: dict[str, Any], generated: int, gigabytes: int | None = None) -> dict[str, Any]:
        script = Path(__file__).with_name("step_memory.py")
        work = json.dumps({"fields": fields, "generated": generated, "gigabytes": gigabytes})
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(script.parents[1]), *sys.path])}
        subprocess.run([sys.executable, script, shape(name), tmp_path, work], env=environment, check=True)
        report: dict[str, Any] = json.loads((tmp_path / "report.json").read_text())
        print(f"\ntook {report['taken']:.1f} GB, planned {report['planned']:.1f}, held {report['held']:.1f}")
        print(report["plan"], report["seconds"], f"{report['retries']} allocations found no room at first", sep="\n")
        return report

    return measured
