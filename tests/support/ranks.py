"""Two workers in separate processes, and the recorded samples that they are dealt."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lorarl_trainer.lora.tensor_file import write_tensors
from lorarl_trainer.protocols.workers import DriverState
from lorarl_trainer.samples.agreement import AgreementLimits
from lorarl_trainer.samples.critic import CriticUpdate
from lorarl_trainer.samples.packing import split_evenly
from lorarl_trainer.samples.requests import LossChoice, UpdateRequest
from lorarl_trainer.samples.sample import Sample
from lorarl_trainer.samples.wire import Samples
from lorarl_trainer.workers.worker import Worker
from support.cluster.processes import free_ports

RECORDED = "samples.pickle"
"""The file of recorded samples in a test's folder."""
RANKS = 2


def run_two_ranks(script: Path, folder: Path, *arguments: object, seconds: float) -> None:
    """Run `python script RANK PORT *arguments` for both ranks to their end. Their output is rank-*.log in `folder`."""
    (port,) = free_ports(1)
    tests = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), *sys.path])}
    logs = [folder / f"rank-{rank}.log" for rank in range(RANKS)]
    ranks = []
    for rank, log in enumerate(logs):
        with log.open("wb") as file:
            command = [sys.executable, *(str(part) for part in (script, rank, port, *arguments))]
            ranks.append(subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT))
    try:
        for process, log in zip(ranks, logs, strict=True):
            assert process.wait(timeout=seconds) == 0, log.read_text()[-4000:]
    finally:
        for process in ranks:
            process.kill()


def record(folder: Path, samples: Sequence[Sample]) -> None:
    """Write samples for both ranks, with advantages of changing sign, and what a critic learns from."""
    signed = []
    for number, sample in enumerate(samples):
        values = np.full(sample.response_length, 0.1 * number, np.float32)
        own = Sample(sample.tokens, sample.prompt_length, (-1.0) ** number, sample.rollout_logprobs)
        signed.append(replace(own, values=values, returns=1 - values))
    (folder / RECORDED).write_bytes(pickle.dumps(signed))


def recorded_request(
    folder: Path,
    learning_rate: float,
    rank: int = 0,
    sharing: int = RANKS,
    *,
    with_signal: int | None = None,
    critic: CriticUpdate | None = None,
    in_episode: int = 1,
) -> UpdateRequest:
    """An update on the recorded samples: all of them, or a rank's share as the driver deals them out.

    So many ranks share a model or a context, and so the samples.
    Only the first `with_signal` samples, by default all, have an advantage other than zero.
    The first `in_episode` samples are sequences of one episode, which then weighs as much as any other.
    """
    samples: list[Sample] = pickle.loads((folder / RECORDED).read_bytes())
    if with_signal is not None:
        samples[with_signal:] = [replace(sample, advantage=0.0) for sample in samples[with_signal:]]
    tokens = sum(sample.trained_length for sample in samples[:in_episode])
    samples[:in_episode] = [replace(sample, episode_length=tokens) for sample in samples[:in_episode]]
    share = split_evenly(samples, RANKS // sharing)[rank // sharing]
    return UpdateRequest(
        samples=Samples(samples[i] for i in share),
        loss=LossChoice("policy_gradient", 0.2, aggregation="token_mean" if in_episode == 1 else "sequence_mean"),
        total_tokens=sum(s.response_length for s in samples),
        temperature=1.0,
        learning_rate=learning_rate,
        seed=0,
        on_policy=False,
        limits=AgreementLimits(tolerance=1.0),
        total_samples=len(samples) - in_episode + 1,
        critic=critic,
    )


def state_file(worker: Worker, rank: int = 0) -> memoryview | None:
    """The optimizer's state as a checkpoint holds it, on the first rank (collective, as `Worker.publish`)."""
    if rank:
        return worker.publish(0, 0, DriverState(), {})  # type: ignore[func-returns-value]  # it only helps
    return write_tensors(worker.backend.snapshot().state)
