"""The toy of `make demo-toy`, trained in this process on samples of adapters that are some versions old.

`lorarl run` cannot do that: its samples are always those of the newest adapter.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lorarl_api.load import load_job
from lorarl_trainer.algorithms.registry import get_algorithm
from lorarl_trainer.checkpoint import Owner
from lorarl_trainer.checkpoint.identity import training_identity
from lorarl_trainer.data.stream import RowStream
from lorarl_trainer.launch import inputs
from lorarl_trainer.loop import train
from lorarl_trainer.progress import EvalDone, Progress, StepDone
from lorarl_trainer.protocols.rollouts import Rollouts, StepBatch
from lorarl_trainer.protocols.workers import JobCheckpoints
from lorarl_trainer.rewards.builtin import BuiltinScorer, make_measure
from lorarl_trainer.rollout.evaluation import Evaluation
from lorarl_trainer.rollout.lockstep import Lockstep
from lorarl_trainer.session import RunCheckpoints, Session
from lorarl_trainer.storage.secrets import Secrets
from lorarl_trainer.timing import StartClock
from lorarl_trainer.workers.checkpoints import CheckpointingWorker
from support.in_process import ALONE, OneWorker
from support.loop_runs import Collected

ROOT = Path(__file__).resolve().parents[2]


def make_addition(folder: Path) -> Path:
    """Make the base model and the data; return their folder."""
    subprocess.run([sys.executable, ROOT / "examples/addition/make_base.py", "--out", folder], check=True)
    return folder


@dataclass
class Behind:
    """Rollouts that were generated some versions before they are trained on, as in a pipeline of that depth.

    Step n has the samples of adapter version n - `versions`, or of the first version until there are so many.
    """

    rollouts: Lockstep
    versions: int
    _waiting: deque[StepBatch] = field(default_factory=deque)

    @property
    def position(self) -> int:
        return self.rollouts.position

    @property
    def unfinished(self) -> Sequence[int]:
        """See `Rollouts.unfinished`."""
        return ()

    async def next(self, step: int, adapter_version: int) -> StepBatch:
        while len(self._waiting) <= self.versions:
            ahead = step + len(self._waiting)
            self._waiting.append(await self.rollouts.next(ahead, adapter_version))
        return self._waiting.popleft()

    def probe_prompts(self, count: int) -> Sequence[Sequence[int]]:
        return self.rollouts.probe_prompts(count)

    async def evaluate(self, name: str, step: int, adapter_version: int) -> EvalDone:
        return await self.rollouts.evaluate(name, step, adapter_version)


@dataclass(frozen=True)
class Learned:
    """What a run has learned: the held-out scores by step, and the metrics of each step."""

    scores: dict[int, float]
    metrics: list[dict[str, float]]


def learn(addition: Path, out: Path, versions_behind: int, *settings: str) -> Learned:
    """Train the toy on samples of that many versions before. `settings` are those of `lorarl run --set`."""
    learned = _learn(addition, out, versions_behind, *settings)
    gc.collect()  # the engine
    return learned


def _learn(addition: Path, out: Path, versions_behind: int, *settings: str) -> Learned:
    changes = [
        f"spec.model.uri=file:{addition}/base",
        f"spec.data.train.uri=file:{addition}/train.jsonl",
        f"spec.data.eval.uri=file:{addition}/held_out.jsonl",
        f"spec.checkpoint.uri=file:{out}/checkpoints",
        # What is old would stop the run otherwise: engine and trainer differ, as two versions do.
        "spec.rollout.logprobTolerance=10",
        *settings,
    ]
    job = load_job((ROOT / "examples/addition-cpu.yaml").read_text(), changes)
    spec, sink = job.spec, Collected()
    secrets: Secrets = {}
    vocabulary = inputs.load_vocabulary(spec, secrets)
    rows = inputs.encode_rows(spec, inputs.read_rows(spec, secrets), vocabulary)
    worker = CheckpointingWorker(spec, ALONE)
    worker.start(addition / "base", tuple(vocabulary.stop_token_ids), None)
    workers = OneWorker(worker)
    assert spec.reward is not None and spec.data.eval is not None
    scorer = BuiltinScorer(make_measure(spec.reward), "spec.reward")
    algorithm, progress = get_algorithm(spec.algorithm, spec.rollout.max_response_tokens), Progress([sink], [])
    newest = Lockstep(
        spec=spec,
        rows=RowStream(rows.train, spec.trainer.seed),
        evaluations={"": Evaluation("", rows.evals[""], scorer)},
        group_size=algorithm.group_size,
        workers=workers,
        scorer=scorer,
        decode=vocabulary.decode,
        progress=progress,
        decode_prompts=vocabulary.decode_prompts,
    )
    rollouts: Rollouts = Behind(newest, versions_behind)
    session = Session(
        spec=spec,
        workers=workers,
        algorithm=algorithm,
        rollouts=rollouts,
        checkpoints=RunCheckpoints(spec, workers, progress),
        progress=progress,
        stop=asyncio.Event(),
        clock=StartClock("driver", "process"),
        total_steps=spec.trainer.steps,
    )

    async def run() -> None:
        identity = training_identity(spec, "fingerprint")
        await workers.open_checkpoints(JobCheckpoints(Owner(job.name, job.uid), identity, out / "unpublished", {}))
        await workers.resume()
        await train(session, 0)
        await session.checkpoints.drain()

    asyncio.run(run())
    return Learned(
        {event.step: event.score for event in sink.events if isinstance(event, EvalDone) and event.score is not None},
        [dict(event.metrics) for event in sink.events if isinstance(event, StepDone)],
    )
