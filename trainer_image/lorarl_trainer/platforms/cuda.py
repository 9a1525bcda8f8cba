"""CUDA: Megatron with Transformer Engine's layers, and vLLM with CUDA graphs, on one GPU a worker."""

from __future__ import annotations

from typing import Any


class CudaPlatform:
    """One NVIDIA GPU."""

    name = "cuda"
    distributed_backend = "nccl"
    packs_sequences = True

    def environment(self, threads: int) -> dict[str, str]:
        """See `Platform.environment`."""
        return {
            "OMP_NUM_THREADS": str(threads),
            # Megatron's order of kernels and communication under tensor parallelism relies on a single hardware queue.
            "CUDA_DEVICE_MAX_CONNECTIONS": "1",
            # Every worker sees all GPUs of its machine and takes the one of its local rank: NCCL's peer access needs that.
            "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
        }

    def device(self, local_rank: int) -> Any:
        """See `Platform.device`."""
        import torch

        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank)

    def prepare_megatron(self) -> None:
        """See `Platform.prepare_megatron`. Megatron is made for this platform."""

    def configure_provider(self, provider: Any) -> None:
        """See `Platform.configure_provider`."""
        # It needs an extension of Apex, and adapters are too small to gain from it.
        provider.gradient_accumulation_fusion = False

    def engine_arguments(self, gpu_memory_fraction: float, kv_cache_bytes: int) -> dict[str, Any]:
        """See `Platform.engine_arguments`. vLLM sizes its own KV cache within its share of the GPU."""
        return {"gpu_memory_utilization": gpu_memory_fraction}

    def attention_mask(self, length: int) -> Any:
        """See `Platform.attention_mask`. Transformer Engine's attention is causal by itself."""
        return None

    def synchronize(self) -> None:
        """See `Platform.synchronize`."""
        import torch

        torch.cuda.synchronize()
