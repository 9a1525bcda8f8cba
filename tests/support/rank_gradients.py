"""One of several tensor-parallel ranks, each in its own process, started by `support.gradients.gradients_of`.

python rank_gradients.py RANK PORT RANKS FOLDER GPUS PRECISION: for each case of `support.gradients`, the first rank
writes its gradients. The models are in FOLDER under their architectures' names.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from lorarl_trainer.devices.registry import get_device

os.environ.update(get_device(int(sys.argv[5])).environment(threads=1))

import torch.distributed as dist
from safetensors.torch import save_file

from support.gradients import CASES, file_of


def main() -> None:
    rank, port, ranks, folder, precision = *(int(word) for word in sys.argv[1:4]), Path(sys.argv[4]), sys.argv[6]
    device = get_device(int(sys.argv[5]))
    dist.init_process_group(
        device.distributed_backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks
    )
    for name, case in CASES.items():
        gradients = case.gradients(device, folder, precision, ranks)
        if rank == 0:
            save_file(gradients, folder / file_of(name, precision))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
