"""For each job: makes one update on a recorded batch with its workers, and publishes the checkpoint.

Run with: BATCH JOB.YAML... RAY_ADDRESS names the Ray cluster. If the file BATCH does not exist, the first job's workers
generate it.
"""

from __future__ import annotations

import asyncio
import pickle
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import ray

from lorarl_api.load import load_job
from lorarl_trainer.checkpoint import Owner
from lorarl_trainer.checkpoint.identity import training_identity
from lorarl_trainer.launch import inputs
from lorarl_trainer.protocols.workers import DriverState, JobCheckpoints
from lorarl_trainer.samples.agreement import AgreementLimits
from lorarl_trainer.samples.requests import GenerationRequest, LossChoice, UpdateRequest
from lorarl_trainer.samples.sample import Completion, Sample
from lorarl_trainer.samples.wire import Samples
from lorarl_trainer.workers.group import WorkerGroup
from lorarl_trainer.workers.nodes import reserve
from lorarl_trainer.workers.processes import start_processes

PROMPTS = 12


async def main(batch: Path, manifests: Sequence[Path]) -> None:
    for manifest in manifests:
        await _update(manifest, batch, manifest.with_name(f"out-{manifest.stem}"))


async def _update(manifest: Path, batch: Path, out: Path) -> None:
    job = load_job(manifest)
    spec = job.spec
    vocabulary = inputs.load_vocabulary(spec, {})
    workers = WorkerGroup(spec, start_processes(spec, out / "logs", reserve(spec)))
    try:
        identity = training_identity(spec, await workers.fetch_model())
        await workers.open_checkpoints(JobCheckpoints(Owner(job.name, job.uid), identity, out / "unpublished", {}))
        await workers.start(vocabulary.stop_token_ids, None)
        await workers.resume()
        await workers.sync(1)
        if not batch.exists():
            await _record(workers, batch)
        result = await workers.update(_request(pickle.loads(batch.read_bytes())))
        await workers.publish(step=1, adapter_version=1, driver=DriverState(), results={})
        await workers.drain_uploads()
        print(
            f"{workers.size} worker(s): loss {result.metrics['loss']:.9f}, "
            f"gradient norm {result.metrics['grad_norm']:.9f}"
        )
    finally:
        workers.kill()


def _request(samples: Sequence[Sample]) -> UpdateRequest:
    return UpdateRequest(
        samples=Samples(samples),
        loss=LossChoice("policy_gradient", 0.2),
        total_tokens=sum(sample.response_length for sample in samples),
        temperature=1.0,
        learning_rate=5e-4,
        seed=0,
        on_policy=False,
        limits=AgreementLimits(tolerance=1.0),
    )


async def _record(workers: WorkerGroup, batch: Path) -> None:
    stream = np.random.default_rng(0)
    prompts = [stream.integers(4, 100, size=3 + index).tolist() for index in range(PROMPTS)]
    ended: dict[int, Completion] = {}
    requests = [GenerationRequest(prompt, seed=index) for index, prompt in enumerate(prompts)]

    def take(first: int, places: Sequence[int], part: Sequence[Completion]) -> None:
        ended.update(zip([first + place for place in places], part, strict=True))

    for first in range(0, PROMPTS, 4):  # the later ones come while the engines work
        await workers.submit(requests[first : first + 4], partial(take, first))
    await workers.results()
    completions = [ended[place] for place in range(PROMPTS)]
    samples = [
        Sample(np.concatenate([prompt, completion.tokens]), len(prompt), (-1.0) ** index, completion.logprobs)
        for index, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
    ]
    batch.write_bytes(pickle.dumps(samples))


if __name__ == "__main__":
    ray.init(log_to_driver=False)
    asyncio.run(main(Path(sys.argv[1]), [Path(path) for path in sys.argv[2:]]))
