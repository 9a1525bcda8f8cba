"""The variables that vLLM reads wherever it generates for a trainer: in a worker, or in an engine's own process."""

from __future__ import annotations

import os


def vllm_environment() -> dict[str, str]:
    """Return them. Set them before vLLM is imported."""
    # vLLM adds over GPUs through NVLink multicast, and ignores the variable that tells PyTorch that there is none.
    no_multicast = os.environ.get("TORCH_SYMM_MEM_DISABLE_MULTICAST", "0") != "0"
    return {
        "VLLM_NO_USAGE_STATS": "1",
        # With latent attention, vLLM would absorb weights into others, without their adapters.
        "VLLM_MLA_DISABLE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # vLLM would bind threads to cores, the trainer's too
        **({"VLLM_ALLREDUCE_USE_SYMM_MEM": "0"} if no_multicast else {}),
    }
