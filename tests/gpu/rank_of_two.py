"""One of two workers, each with a GPU, in separate processes, started by test_two_gpus.py.

python rank_of_two.py RANK PORT TRAINER_TP ROLLOUT_TP CONTEXT FOLDER: load the adapter of FOLDER, sync it (checked
element by element), generate, score, make updates on the recorded samples, resume from one GPU's checkpoint, write the
results.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from lorarl_trainer.devices.cuda import CudaDevice

os.environ.update(CudaDevice().environment(threads=8))

import torch
from safetensors.torch import load_file

from lorarl_trainer.samples.sampling import Sampling
from lorarl_trainer.samples.wire import Samples
from lorarl_trainer.workers.state import State
from lorarl_trainer.workers.worker import Rank, Worker
from support.in_process import STOP, made, mean_difference, prompts, samples_of, tiny_job, wanted
from support.ranks import recorded_request


def main() -> None:
    rank, port, *layout = (int(argument) for argument in sys.argv[1:6])
    (trainer_tp, rollout_tp, context), folder = layout, Path(sys.argv[6])
    changes = {
        "cluster__gpusPerNode": 2,
        "trainer__tensorParallelSize": trainer_tp,
        "rollout__tensorParallelSize": rollout_tp,
        "trainer__contextParallelSize": context,
    }
    spec = tiny_job(folder / "model", folder, rollout__verifySync="true", **changes).spec
    worker = Worker(spec, Rank(rank, 2, rank, "127.0.0.1", port))
    worker.start(folder / "model", STOP, None)
    worker.backend.load_adapter(load_file(folder / "adapter.safetensors"), "test")

    seconds = [worker.sync(version) for version in range(1, 6)][
        -1
    ]  # each sync is compared with the export, element by element
    assert worker.engine is not None
    handed_over = len(made(worker, wanted(prompts(32), range(32))))
    drawn, differences = [], []
    for sampling in (Sampling(), Sampling(top_k=5)):
        completions = made(worker.engine, wanted(prompts(32), range(32), sampling=sampling))
        drawn.append([completion.tokens.tolist() for completion in completions])
        scored = worker.log_probabilities(Samples(samples_of(prompts(32), completions)), 1.0)
        differences.append(mean_difference(scored, [completion.logprobs for completion in completions]))
    drawn.append([completion.tokens.tolist() for completion in made(worker.engine, wanted(prompts(32)))])

    request = recorded_request(folder, 1e-3, rank, trainer_tp * context)
    results = [worker.update(request) for _ in range(3)]
    worker.sync(6)
    worker.restore(State([(folder / "state").read_bytes()], updates=1) if rank == 0 else None)
    resumed = worker.update(request)
    report = {
        "sync_seconds": seconds,
        "differences": differences,
        "handed_over": handed_over,
        "losses": [r.metrics["loss"] for r in results],
        "norms": [r.metrics["grad_norm"] for r in results],
        "resumed": resumed.metrics["loss"],
        "shared_bytes": worker.engine.base.shared_bytes if worker.engine.base else 0,
    }
    torch.save(drawn, folder / f"drawn-{'-'.join(map(str, layout))}-{rank}.pt")
    torch.save(report, folder / f"report-{'-'.join(map(str, layout))}-{rank}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
