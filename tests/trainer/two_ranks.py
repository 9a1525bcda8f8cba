"""One of two workers, each in its own process, started by test_parallel.py.

python two_ranks.py RANK PORT LAYOUT FOLDER: for each adapter type, load the adapter of FOLDER, export it again,
generate, make an update on the recorded samples, take a checkpoint; and write the results.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from lorarl_trainer.devices.cpu import CpuDevice

os.environ.update(CpuDevice().environment(threads=1))

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from lorarl_trainer.lora.tensor_file import read_tensors
from lorarl_trainer.samples.critic import CriticUpdate
from lorarl_trainer.workers.state import State
from lorarl_trainer.workers.worker import Rank, Worker
from support.in_process import STOP, forget_groups, made, prompts, samples_of, tiny_job, wanted
from support.ranks import recorded_request, state_file

KINDS: dict[str, tuple[dict[str, str], str]] = {
    "canonical_lora": ({}, "qwen2"),
    "lora": ({"adapter__type": "lora"}, "qwen2-one"),
    "experts": ({}, "qwen3_moe"),
    "shared matrices": ({"adapter__experts": "sharedOuter"}, "qwen3_moe"),
}
"""Fields of an adapter, and the model that it is for. The ranks share the second one's key-value head."""
MIXTURES = ["experts", "shared matrices"]
LAYOUTS: dict[str, tuple[dict[str, int], list[str]]] = {
    "tensor parallel": ({"trainer__tensorParallelSize": 2}, ["canonical_lora", "lora"]),
    "data parallel": ({}, ["canonical_lora", "lora", "experts"]),
    "context parallel": ({"trainer__contextParallelSize": 2}, list(KINDS)),
    "expert parallel": ({"trainer__expertParallelSize": 2}, MIXTURES),
    "tensor parallel, experts": ({"trainer__tensorParallelSize": 2, "trainer__expertParallelSize": 2}, MIXTURES),
}
"""How two workers share a model, and what is trained so."""
LONG_LAYOUTS = ("context parallel", "expert parallel", "tensor parallel, experts")
CRITIC = CriticUpdate(learning_rate=1e-2, clip_range=1.0, alone=False)


def main() -> None:
    rank, port, layout, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    fields, kinds = LAYOUTS[layout]
    sharing = fields.get("trainer__tensorParallelSize", 1) * fields.get("trainer__contextParallelSize", 1)
    for kind in kinds:
        of_adapter, architecture = KINDS[kind]
        if kind in MIXTURES:
            forget_groups()
        spec = tiny_job(folder / architecture, folder, algorithm__type="ppo", **of_adapter, **fields).spec
        worker = Worker(spec, Rank(rank, 2, rank, "127.0.0.1", port))
        worker.start(folder / architecture, STOP, None)
        fresh = {name: tensor.clone() for name, tensor in worker.backend.model.export().items()}
        worker.backend.load_adapter(load_file(folder / f"{kind}.safetensors"), "test")
        exported = {name: tensor.clone() for name, tensor in worker.backend.model.export().items()}

        # Every engine has the adapter: its log-probabilities are those of the trainer.
        worker.sync(1)
        completions = made(worker, wanted(prompts(), range(len(prompts()))))
        samples = samples_of(prompts(), completions)
        agreement = max(
            float(np.abs(a - c.logprobs).max())
            for a, c in zip(worker.log_probabilities(samples, 1.0), completions, strict=True)
        )

        # The recorded batch, split as the driver splits it.
        request = recorded_request(folder, 1e-2, rank, sharing, critic=CRITIC)
        results = [worker.update(request) for _ in range(2)]
        updated = {name: tensor.clone() for name, tensor in worker.backend.model.export().items()}
        exports = count_exports(worker)
        after_two = state_file(worker, rank)
        exported_for_the_checkpoint = len(exports)

        # Resume from a single worker's checkpoint.
        file = (folder / f"{kind}.state").read_bytes()
        tensors = read_tensors(file)
        worker.restore(State([file], updates=1, critic_updates=1) if rank == 0 else None)
        again = state_file(worker, rank)
        unchanged = again is None or same(tensors, read_tensors(bytes(again)))
        resumed = worker.update(request)
        # A rank may have no sample with a gradient.
        one_sample = worker.update(recorded_request(folder, 1e-2, rank, sharing, with_signal=1))
        episodes = worker.update(recorded_request(folder, 1e-2, rank, sharing, in_episode=3))
        if rank == 0:
            for name, adapter in (("fresh", fresh), ("exported", exported), ("updated", updated)):
                save_file({n: t.detach().clone() for n, t in adapter.items()}, folder / f"{kind}-{name}.safetensors")
            (folder / f"{kind}-state.safetensors").write_bytes(after_two)
        report = {
            "losses": [r.metrics["loss"] for r in results],
            "norms": [r.metrics["grad_norm"] for r in results],
            "critic": [result.metrics[name] for result in results for name in ("critic/loss", "critic/grad_norm")],
            "resumed": resumed.metrics["loss"],
            "resumed_critic": resumed.metrics["critic/loss"],
            "one_sample": [one_sample.metrics["loss"], one_sample.metrics["grad_norm"]],
            "episodes": [episodes.metrics["loss"], episodes.metrics["grad_norm"]],
            "agreement": agreement,
            "dropout_seed": torch.initial_seed(),
            "exports": exported_for_the_checkpoint,
            "unchanged": unchanged,
        }
        torch.save(report | {"completions": [c.tokens.tolist() for c in completions]}, folder / f"{kind}-{rank}.pt")


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    """Whether two states are the same, bit for bit."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def count_exports(worker: Worker) -> list[None]:
    """Return a list that grows by an entry with each export of this rank."""
    made: list[None] = []
    export: Any = worker.backend.model._export  # type: ignore[attr-defined]  # Megatron's
    run = export.run

    def counted() -> object:
        made.append(None)
        return run()

    export.run = counted
    return made


if __name__ == "__main__":
    main()
