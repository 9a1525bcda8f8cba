"""One of two ranks that share the tokens of samples, each with a GPU, in separate processes.

Started by test_shared_context.py. python rank_of_context.py RANK PORT FOLDER: the gradients of `samples_to_compare`,
and how long a step with `long_sample` takes. The model is in FOLDER.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from lorarl_trainer.devices.cuda import CudaDevice

os.environ.update(CudaDevice().environment(threads=8))

import numpy as np
import torch
import torch.distributed as dist

from lorarl_trainer.samples.sample import Sample
from support.ranks import RANKS
from support.training import BareTrainer

PROMPT_TOKENS, RESPONSE_TOKENS = 127_000, 1000
TARGETS = ("all-linear",)
BUDGET = 1 << 18
"""Tokens of a micro-batch: all of them."""


def samples_to_compare() -> list[Sample]:
    """Ragged completions of two long prompts, which one GPU can train too."""
    stream = np.random.default_rng(0)
    samples = []
    for prompt_tokens, lengths in ((12_000, (700, 20, 333)), (3000, (1, 900))):
        prompt = stream.integers(4, 60_000, prompt_tokens)
        for length in lengths:
            tokens = np.concatenate([prompt, stream.integers(4, 60_000, length)])
            samples.append(Sample(tokens, prompt_tokens, float(stream.normal()), np.zeros(length, np.float32)))
    return samples


def long_sample() -> Sample:
    """A prompt of 127,000 tokens with a response of 1,000."""
    tokens = np.random.default_rng(1).integers(4, 60_000, PROMPT_TOKENS + RESPONSE_TOKENS)
    return Sample(tokens, PROMPT_TOKENS, 1.0, np.zeros(RESPONSE_TOKENS, np.float32))


def step_seconds(trainer: BareTrainer) -> float:
    """Return how long the gradient of the long sample takes, after one to warm up, on all ranks together."""
    seconds = 0.0
    for _ in range(2):
        torch.cuda.synchronize()
        dist.barrier()
        began = time.perf_counter()
        trainer.loss_and_gradients([long_sample()])
        torch.cuda.synchronize()
        dist.barrier()
        seconds = time.perf_counter() - began
    return seconds


def main() -> None:
    rank, port, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    device = CudaDevice()
    torch.cuda.set_device(rank)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group(device.distributed_backend, init_method=address, rank=rank, world_size=RANKS)
    options = {"budget": BUDGET, "targets": TARGETS, "packed": True, "context_parallel": RANKS}
    trainer = BareTrainer(device, folder / "model", "bf16", **options)
    loss, gradients = trainer.loss_and_gradients(samples_to_compare())
    report = {"loss": loss, "gradients": gradients, "seconds": step_seconds(trainer)}
    torch.save(report | {"gigabytes": torch.cuda.max_memory_allocated() / 1e9}, folder / f"context-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
