"""Which device a job gets, and how its process is set up for it. No GPU is needed."""

from __future__ import annotations

import pytest

from lorarl_trainer.devices.registry import get_device


def test_a_job_without_gpus_runs_on_the_cpu() -> None:
    device = get_device(gpus_per_node=0)
    assert (device.name, device.distributed_backend) == ("cpu", "gloo")
    assert 0 < device.memory().free < device.memory().total
    environment = device.environment(threads=3)
    assert environment["OMP_NUM_THREADS"] == "3"
    assert environment["CUDA_VISIBLE_DEVICES"] == ""


def test_a_job_with_gpus_runs_on_cuda() -> None:
    device = get_device(gpus_per_node=8)
    assert (device.name, device.distributed_backend) == ("cuda", "nccl")
    environment = device.environment(threads=3)
    assert environment["OMP_NUM_THREADS"] == "3"
    assert "CUDA_VISIBLE_DEVICES" not in environment, "each worker sees all GPUs of its machine"
    assert environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "32", "training must not hold up generation"
    assert device.environment(threads=3, tensor_parallel=True)["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"


@pytest.mark.parametrize("gpus", [0, 1])
def test_threads_that_wait_soon_leave_their_cores_to_others(gpus: int) -> None:
    assert int(get_device(gpus).environment(threads=3)["GOMP_SPINCOUNT"]) <= 10_000
