"""CUDA: Megatron with Transformer Engine's layers, on one GPU per worker."""

from __future__ import annotations

from typing import Any

from lorarl_trainer.devices.base import Gpu


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
        import torch

        # It needs an extension of Apex, and adapters are too small to gain from it.
        provider.gradient_accumulation_fusion = False
        provider.bias_dropout_fusion = provider.apply_rope_fusion = True
        # Activations that Megatron has a kernel for; it refuses to fuse others.
        provider.bias_activation_fusion = (
            provider.gated_linear_unit and provider.activation_func is torch.nn.functional.silu
        )
        # One kernel splits q, k and v and turns q and k, where no norm stands between.
        provider.fused_single_qkv_rope = provider.position_embedding_type == "rope" and not provider.qk_layernorm

    def memory(self) -> Gpu:
        """See `Platform.memory`."""
        import torch

        free, total = torch.cuda.mem_get_info()
        return Gpu(total, free, torch.cuda.get_device_name())

    def attention_mask(self, length: int) -> Any:
        """See `Platform.attention_mask`. Transformer Engine's attention is causal by itself."""
        return None

    def synchronize(self) -> None:
        """See `Platform.synchronize`."""
        import torch

        torch.cuda.synchronize()
