"""CUDA: one GPU per worker."""

from __future__ import annotations

from typing import Any

from lorarl_api.v1alpha1 import CPUS_PER_GPU
from lorarl_trainer.devices.base import Gpu
from lorarl_trainer.devices.openmp import openmp


class CudaDevice:
    """One NVIDIA GPU."""

    name = "cuda"
    distributed_backend = "nccl"

    def environment(self, threads: int, *, tensor_parallel: bool = False) -> dict[str, str]:
        return {
            # A pod cannot know how many more of its node's CPUs it will get.
            **openmp(min(threads, CPUS_PER_GPU)),
            # Megatron's order of kernels and communication under tensor parallelism relies on a single hardware queue.
            # Otherwise there are as many as possible, so that no stream's kernels wait behind another's.
            "CUDA_DEVICE_MAX_CONNECTIONS": "1" if tensor_parallel else "32",
            # Every worker sees all GPUs of its machine and uses that of its local rank. NCCL's peer access needs it.
            "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
            # Products of fp32 keep its 23 bits. Triton's default is TF32, with 10 bits: in fp32, vLLM's attention would
            # be 2e-3 nats away from the trainer's.
            "TRITON_F32_DEFAULT": "ieee",
        }

    def select(self, local_rank: int) -> Any:
        import torch

        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank)

    def memory(self) -> Gpu:
        import torch

        free, total = torch.cuda.mem_get_info()
        return Gpu(total, free, torch.cuda.get_device_name(), torch.cuda.get_device_capability())

    def unneeded(self) -> int:
        import torch

        unneeded = torch.cuda.memory_reserved() - torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return max(unneeded, 0)

    def retries(self) -> int:
        import torch

        return int(torch.cuda.memory_stats().get("num_alloc_retries", 0))

    def synchronize(self) -> None:
        import torch

        torch.cuda.synchronize()
