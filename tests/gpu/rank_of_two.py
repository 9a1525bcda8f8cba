"""One of two workers, each with a GPU, in processes of their own, started by test_two_gpus.py.

python rank_of_two.py RANK PORT TRAINER_TP ROLLOUT_TP FOLDER: load the adapter of FOLDER, sync it (checked element by element), generate,
score, make updates on the recorded samples, go on from one GPU's checkpoint, and write what came of it.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

from lorarl_trainer.platforms.cuda import CudaPlatform

os.environ.update(CudaPlatform().environment(threads=8))

import numpy as np
import torch
from safetensors.torch import load_file

from lorarl_trainer.algorithms import LossChoice
from lorarl_trainer.batch import Samples, UpdateRequest
from lorarl_trainer.megatron_lora import state
from lorarl_trainer.packing import split_evenly
from lorarl_trainer.worker import Place, Worker
from support.in_process import STOP, prompts, samples_of, tiny_job


def main() -> None:
    rank, port, trainer_tp, rollout_tp, folder = *(int(argument) for argument in sys.argv[1:5]), Path(sys.argv[5])
    changes = {"cluster__gpusPerNode": 2, "trainer__tensorParallelSize": trainer_tp, "rollout__tensorParallelSize": rollout_tp}
    spec = tiny_job(folder / "model", folder, rollout__verifySync="true", **changes).spec
    worker = Worker(spec, Place(rank, 2, rank, "127.0.0.1", port, 8))
    worker.start(folder / "model", STOP, None)
    state.load_adapter(worker._layout, worker._optimizer, load_file(folder / "adapter.safetensors"), "test")

    seconds = [worker.sync()[1] for _ in range(5)][-1]  # each sync is compared with the export, element by element
    completions, _ = worker.generate(prompts(32), list(range(32)))
    samples = samples_of(prompts(32), completions)
    scored = worker.log_probabilities(samples, 1.0)
    difference = float(np.mean(np.concatenate([np.abs(a - c.logprobs) for a, c in zip(scored, completions, strict=True)])))

    recorded = pickle.loads((folder / "samples.pickle").read_bytes())
    shares = split_evenly(recorded, 2 // trainer_tp)
    request = UpdateRequest(
        samples=Samples(recorded[i] for i in shares[rank // trainer_tp]),
        loss=LossChoice("policy_gradient", 0.2),
        total_tokens=sum(s.response_length for s in recorded),
        temperature=1.0,
        learning_rate=1e-3,
        seed=0,
        on_policy=False,
        tolerance=1.0,
    )
    results = [worker.update(request) for _ in range(3)]
    worker.sync()
    state.load_state(worker._layout, worker._optimizer, (folder / "state").read_bytes(), updates=1)
    resumed = worker.update(request)
    report = {
        "sync_seconds": seconds,
        "difference": difference,
        "losses": [r.loss for r in results],
        "norms": [r.grad_norm for r in results],
        "resumed": resumed.loss,
        "shared_bytes": worker._rollouts.base.shared_bytes if worker._rollouts and worker._rollouts.base else 0,
    }
    torch.save(report, folder / f"report-{trainer_tp}-{rollout_tp}-{rank}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
