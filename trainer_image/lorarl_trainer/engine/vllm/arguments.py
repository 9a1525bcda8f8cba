"""How vLLM is set up for this machine: its environment, and the arguments of its engine that depend on the device."""

from __future__ import annotations

import os
from typing import Any

from lorarl_trainer.devices.base import Device, Host
from lorarl_trainer.planning.execution import ExecutionPlan

BEGUN = "begun"
"""The name by which a request says how many tokens of its completion were made before."""
WATERMARK = 0.02
"""Share of the KV cache that stays free for the requests that run when another one is admitted.

Without it, requests that have just been admitted are stopped again at once. 2% lets 500 requests grow by some 20 tokens
in the KV cache of a 7B model on an H200, and costs 2% of its room.
"""


def environment() -> dict[str, str]:
    """Return the variables that vLLM reads. Set them before it is imported."""
    # vLLM adds over GPUs through NVLink multicast, and ignores the variable that tells PyTorch that there is none.
    no_multicast = os.environ.get("TORCH_SYMM_MEM_DISABLE_MULTICAST", "0") != "0"
    return {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine's core runs in this process
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # vLLM would bind threads to cores, the trainer's too
        **({"VLLM_ALLREDUCE_USE_SYMM_MEM": "0"} if no_multicast else {}),
    }


def device_arguments(device: Device, plan: ExecutionPlan) -> dict[str, Any]:
    """Return the arguments of `vllm.EngineArgs` that depend on the device."""
    gpu = device.memory()
    if isinstance(gpu, Host):
        return {"enforce_eager": True, "block_size": plan.kv_block_tokens}
    return {
        # vLLM gets the size of its KV cache elsewhere. It only refuses to start unless this share of the GPU is free,
        # and the plan has looked at what is free already.
        "gpu_memory_utilization": 0.01,
        # Logits in float32, as the trainer computes them. bf16 would round the log-probabilities of a sure model by
        # some hundredths.
        "hf_overrides": {"head_dtype": "float32"},
        "compilation_config": {
            # torch.compile takes 25 s of a start, and vLLM already has kernels for what it would fuse.
            "mode": 0,
            # Prompts come in batches too large for a graph, so only decoding gains from one.
            "cudagraph_mode": "FULL_DECODE_ONLY",
            "cudagraph_capture_sizes": capture_sizes(plan.sequences),
        },
    }


def capture_sizes(sequences: int) -> list[int]:
    """Return the batch sizes to record CUDA graphs of decoding for, up to all sequences (vLLM's choice ends at 512).

    A batch is padded to the next size. Up to 128 that costs nothing, because reading the weights takes longer than
    multiplying with them. Above 128 the gaps are small. A graph takes memory, and some 50 ms of the start.
    """
    powers = [2**power for power in range(8)]
    return sorted({size for size in (*powers, *range(160, sequences, 32)) if size < sequences} | {sequences})
