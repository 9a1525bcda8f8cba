"""CUDA: Megatron with Transformer Engine's layers, and vLLM with CUDA graphs, on one GPU a worker."""

from __future__ import annotations

import os
from typing import Any

from lorarl_trainer.devices.base import Gpu


class CudaPlatform:
    """One NVIDIA GPU."""

    name = "cuda"
    distributed_backend = "nccl"
    packs_sequences = True

    def environment(self, threads: int) -> dict[str, str]:
        """See `Platform.environment`."""
        # vLLM adds up over GPUs through NVLink multicast, without a look at the variable by which PyTorch is told that there is none.
        no_multicast = os.environ.get("TORCH_SYMM_MEM_DISABLE_MULTICAST", "0") != "0"
        return {
            **({"VLLM_ALLREDUCE_USE_SYMM_MEM": "0"} if no_multicast else {}),
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

    def engine_arguments(self, sequences: int) -> dict[str, Any]:
        """See `Platform.engine_arguments`."""
        gpu = self.memory()
        return {
            # vLLM is told the size of its KV cache; of this share it only asks that so much is free.
            "gpu_memory_utilization": 0.9 * gpu.free / gpu.total,
            # Logits in float32, as the trainer computes them: bf16 would round the log-probabilities of a sure model by some hundredths.
            "hf_overrides": {"head_dtype": "float32"},
            "compilation_config": {
                # torch.compile takes 25 s of a start, and what it would fuse has kernels of vLLM's already.
                "mode": 0,
                # Prompts come in batches too large for a graph; only decoding gains from one.
                "cudagraph_mode": "FULL_DECODE_ONLY",
                "cudagraph_capture_sizes": capture_sizes(sequences),
            },
        }

    def attention_mask(self, length: int) -> Any:
        """See `Platform.attention_mask`. Transformer Engine's attention is causal by itself."""
        return None

    def synchronize(self) -> None:
        """See `Platform.synchronize`."""
        import torch

        torch.cuda.synchronize()


def capture_sizes(sequences: int) -> list[int]:
    """Return the batch sizes to record a CUDA graph of decoding for: the largest is all sequences (vLLM's own choice ends at 512).

    A batch is padded to the next size. Up to 128 that costs nothing, as reading the weights takes longer than multiplying with
    them; above, the steps are small. A graph takes memory, and some 50 ms of the start.
    """
    powers = [2**power for power in range(8)]
    return sorted({size for size in (*powers, *range(160, sequences, 32)) if size < sequences} | {sequences})
