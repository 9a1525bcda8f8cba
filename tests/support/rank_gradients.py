"""Ranks of one model, each in its own process, started by `support.gradients`.

python rank_gradients.py RANKS FOLDER GPUS PRECISION NAME...: for each of these cases of so many ranks, the first one
writes its gradients to FOLDER. The models are there under their architectures' names.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from lorarl_trainer.devices.registry import get_device

os.environ.update(get_device(int(sys.argv[3])).environment(threads=1))

import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from safetensors.torch import save_file

from lorarl_trainer.backends.registry import get_backend
from support.cluster.processes import free_ports
from support.gradients import CASES, file_of

RANKS, FOLDER, GPUS, PRECISION = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
NAMES = sys.argv[5:]


def run_rank(rank: int, port: int) -> None:
    device = get_device(GPUS)
    dist.init_process_group(
        device.distributed_backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS
    )
    for number, name in enumerate(NAMES):
        try:
            gradients = CASES[RANKS][name].gradients(device, FOLDER, PRECISION, RANKS)
        except Exception as error:
            error.add_note(f"in the case {name!r}")
            raise
        forget_layout()
        if rank == 0:
            save_file(gradients, FOLDER / file_of(number))
    dist.destroy_process_group()


def forget_layout() -> None:
    """Let the next case have another one."""
    from megatron.core import parallel_state

    parallel_state.destroy_model_parallel()


def main() -> None:
    if not GPUS:
        get_backend("megatron").import_libraries(get_device(GPUS))  # once for all, which takes longest
    start = "spawn" if GPUS else "fork"
    multiprocessing.start_processes(run_rank, (free_ports(1)[0],), nprocs=RANKS, start_method=start)


if __name__ == "__main__":
    main()
