"""For each job: makes one update on a recorded batch with its workers, and publishes the checkpoint.

Run with: BATCH JOB.YAML... RAY_ADDRESS names the Ray cluster. If the file BATCH does not exist, the first job's workers
generate it. Then each makes the same update once more with a part of the samples trained while others are generated.
"""

from __future__ import annotations

import asyncio
import pickle
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import ray

from lorarl_api.load import load_job
from lorarl_trainer.checkpoint import Owner
from lorarl_trainer.checkpoint.identity import training_identity
from lorarl_trainer.launch import inputs
from lorarl_trainer.protocols.workers import DriverState, JobCheckpoints
from lorarl_trainer.samples.agreement import AgreementLimits
from lorarl_trainer.samples.types import Completion, GradientRequest, LossChoice, Sample, Samples, UpdateRequest
from lorarl_trainer.workers import group
from lorarl_trainer.workers.group import WorkerGroup
from lorarl_trainer.workers.nodes import reserve

PROMPTS = 12


async def main(batch: Path, manifests: Sequence[Path]) -> None:
    group.may_overlap = lambda spec: True  # on a CPU too
    for manifest in manifests:
        await _update(manifest, batch, manifest.with_name(f"out-{manifest.stem}"))


async def _update(manifest: Path, batch: Path, out: Path) -> None:
    job = load_job(manifest)
    spec = job.spec
    vocabulary = inputs.load_vocabulary(spec, {})
    workers = WorkerGroup(spec, out / "logs", reserve(spec))
    try:
        identity = training_identity(spec, await workers.fetch_model())
        await workers.open_checkpoints(JobCheckpoints(Owner(job.name, job.uid), identity, out / "unpublished", {}))
        await workers.start(vocabulary.stop_token_ids, None)
        await workers.resume()
        await workers.sync(1)
        if not batch.exists():
            await _record(workers, batch)
        request = _request(pickle.loads(batch.read_bytes()))
        result = await workers.update(request)
        await workers.publish(step=1, adapter_version=1, driver=DriverState(), results={})
        await workers.drain_uploads()
        print(
            f"{workers.size} worker(s): loss {result.metrics['loss']:.9f}, "
            f"gradient norm {result.metrics['grad_norm']:.9f}"
        )
        await _require_same_while_generating(workers, replace(request, learning_rate=0.0))
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


async def _require_same_while_generating(workers: WorkerGroup, request: UpdateRequest) -> None:
    """Require the loss and the gradient of an update also if every trainer gets a part of it while engines generate."""
    expected = await workers.update(request)
    parts = [request.samples[trainer :: workers.trainers + 1] for trainer in range(workers.trainers + 1)]
    moments: dict[str, float] = {}

    async def accumulate(trainer: int) -> None:
        part = GradientRequest(Samples(parts[trainer]), request.loss, request.temperature, request.on_policy)
        await workers.accumulate(trainer, part)
        moments["accumulated"] = time.perf_counter()

    async def generate() -> None:
        await workers.generate([[5, 6, 7]] * 64, list(range(64)), lambda places, part: None, max_tokens=150)
        moments["generated"] = time.perf_counter()

    await asyncio.gather(generate(), *map(accumulate, range(workers.trainers)))
    found = await workers.update(replace(request, samples=Samples(parts[-1])))
    print(f"  the same while generating: gradient norm {found.metrics['grad_norm']:.9f}")
    assert moments["accumulated"] < moments["generated"], "neither waited for the other"
    for name in ("loss", "grad_norm"):
        assert abs(found.metrics[name] - expected.metrics[name]) < 1e-6 * max(1.0, expected.metrics[name]), name


async def _record(workers: WorkerGroup, batch: Path) -> None:
    stream = np.random.default_rng(0)
    prompts = [stream.integers(4, 100, size=3 + index).tolist() for index in range(PROMPTS)]
    ended: dict[int, Completion] = {}
    await workers.generate(
        prompts, list(range(PROMPTS)), lambda places, part: ended.update(zip(places, part, strict=True))
    )
    completions = [ended[place] for place in range(PROMPTS)]
    samples = [
        Sample(np.concatenate([prompt, completion.tokens]), len(prompt), (-1.0) ** index, completion.logprobs)
        for index, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
    ]
    batch.write_bytes(pickle.dumps(samples))


if __name__ == "__main__":
    ray.init(log_to_driver=False)
    asyncio.run(main(Path(sys.argv[1]), [Path(path) for path in sys.argv[2:]]))
