"""One of two workers that share a base of trainer.backend fsdp, each in its own process: see test_fsdp_sharded.py.

python sharded_ranks.py RANK PORT FOLDER RECOMPUTE: make two updates on the recorded samples, and write the results.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

from lorarl_trainer.devices.cpu import CpuDevice

os.environ.update(CpuDevice().environment(threads=1))

import torch
from safetensors.torch import load_file, save_file

from lorarl_trainer.samples.wire import Samples
from lorarl_trainer.workers.worker import Rank, Worker
from support.in_process import STOP
from support.ranks import recorded_request, state_file
from trainer.test_fsdp_sharded import BASE, sft_job

rank, port, folder, recompute = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
spec = sft_job(folder, nodes=2, recompute=recompute)
worker = Worker(spec, Rank(rank, 2, rank, "127.0.0.1", port))
worker.start(folder / BASE, STOP, None)
base = worker.backend.base_digest()
worker.backend.load_adapter(load_file(folder / "adapter.safetensors"), "test")
request = recorded_request(folder, 1e-2)
# The second rank has few of the samples, and so fewer micro-batches.
request = replace(request, samples=Samples(request.samples[:9] if rank == 0 else request.samples[9:]))
results = [worker.update(request) for _ in range(2)]
logprobs = worker.log_probabilities(request.samples if rank == 0 else request.samples[:1], 1.0)
state = state_file(worker, rank)
torch.save(
    {
        "losses": [result.metrics["loss"] for result in results],
        "norms": [result.metrics["grad_norm"] for result in results],
        "held": sum(parameter.numel() for _, parameter in worker.backend.model.base_parameters()),
        "total": worker.backend.counts().total,
        "base_stays": worker.backend.base_digest() == base,
        "logprobs": [len(one) for one in logprobs],
    },
    folder / f"{rank}.pt",
)
if rank == 0:
    save_file({name: tensor.clone() for name, tensor in worker.backend.model.export().items()}, folder / "updated.st")
