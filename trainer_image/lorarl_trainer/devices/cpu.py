"""CPU: the same loop with real Megatron and real vLLM, for laptops, tests and the embedded default."""

from __future__ import annotations

from typing import Any

from lorarl_trainer.devices.base import Host
from lorarl_trainer.devices.host_memory import host_memory
from lorarl_trainer.devices.openmp import openmp


class CpuDevice:
    """This machine's CPU."""

    name = "cpu"
    distributed_backend = "gloo"

    def environment(self, threads: int, *, tensor_parallel: bool = False) -> dict[str, str]:
        return {
            **openmp(threads),
            # The same sums with any number of threads: Intel's MKL would split long ones among them.
            "MKL_CBWR": "AUTO,STRICT",
            "TORCHDYNAMO_DISABLE": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }

    def select(self, local_rank: int) -> Any:
        import torch

        return torch.device("cpu")

    def memory(self) -> Host:
        return host_memory()

    def unneeded(self) -> int:
        """See `Device.unneeded`. torch keeps nothing for later on a CPU."""
        return 0

    def retries(self) -> int:
        return 0

    def synchronize(self) -> None:
        """See `Device.synchronize`. A CPU does everything at once."""
