"""Trials at one worker: each ends in the bytes that it has alone, and what befalls one of them stays with it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lorarl_trainer.errors import InputError, StaleAdapterError, WorkerError
from lorarl_trainer.progress import StepDone, is_time_column
from lorarl_trainer.samples.requests import GenerationRequest
from lorarl_trainer.workers.shared import SharedWorker
from support.in_process import tiny_job
from support.loop_runs import rows, run_in_process
from support.shared import Actor, Trial, ended_process, together, trial

pytestmark = pytest.mark.both_backends

KL = "{{type: grpo, groupSize: 4, klCoefficient: {weight}, kl: {{reference: average, decay: {decay}}}}}"
PPO = "{{type: ppo, updatesPerStep: 2, klCoefficient: 0.1, ppo: {{criticLearningRate: {rate}}}}}"
NUMBERS: list[dict[str, Any]] = [
    {"trainer__seed": 3},
    {"trainer__seed": 4, "trainer__learningRate": 3e-3, "trainer__weightDecay": 0.1},
    {"trainer__steps": 3, "trainer__beta1": 0.5, "trainer__maxGradNorm": 0.1, "trainer__warmupSteps": 2},
]
KINDS: dict[str, list[dict[str, Any]]] = {
    "grpo": [*NUMBERS, {"algorithm__type": "dapo"}, {"algorithm__clipRange": 0.01, "algorithm__updatesPerStep": 2}],
    "average": [
        {"algorithm": KL.format(weight=0.2, decay=0.5)},
        {"algorithm": KL.format(weight=1.0, decay=0.9), "trainer__seed": 4},
    ],
    "ppo": [
        {"algorithm": PPO.format(rate=2e-2), "trainer__seed": 3},
        {"algorithm": PPO.format(rate=1e-3), "trainer__steps": 3, "trainer__beta1": 0.5},
    ],
    "sft": [{"reward": "null", "algorithm": "{type: sft}", **numbers} for numbers in NUMBERS],
    "dpo": [{"reward": "null", "algorithm": f"{{type: dpo, dpo: {{beta: {beta}}}}}"} for beta in (0.1, 0.5)],
}


@pytest.fixture
def model(model_folder: Callable[[str], Path]) -> Path:
    return model_folder("qwen3-tied")


@pytest.fixture
def common(backend: str) -> dict[str, Any]:
    """What the trials have in common."""
    return {"trainer__backend": backend, "adapter__dropout": 0.1}


def shared(model: Path, out: Path, seats: int = 8, **changes: Any) -> Actor:
    return Actor(SharedWorker(tiny_job(model, out, **changes).spec, None, seats))


def found(out: Path, steps: Sequence[StepDone]) -> tuple[dict[str, str], list[dict[str, float]]]:
    """The digest of each file of tensors in a trial's checkpoints, and the metrics of its steps."""
    files = sorted(out.glob("checkpoints/*/iter_*/**/*.safetensors"))
    digests = {str(file.relative_to(out)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    metrics = [{name: value for name, value in one.metrics.items() if not is_time_column(name)} for one in steps]
    return digests, metrics


def learning(kind: str) -> dict[str, Any]:
    """The rows of those that learn from data: answers, or pairs of them."""
    if kind not in ("sft", "dpo"):
        return {}
    made = rows(answer=[7, 8, 9])
    return {"train_rows": [replace(row, rejected_ids=[4, 5, 6]) for row in made] if kind == "dpo" else made}


def trained_alone(colocated, out: Path, kind: str, changes: dict[str, Any]) -> tuple[dict[str, str], Any]:
    """A trial's results as those of an ordinary job. A new thread, as a shared worker's is, has no other settings."""

    def train() -> list[StepDone]:
        worker = colocated(**changes)
        worker.out = out
        worker.job.spec.checkpoint.__dict__["uri"] = f"file://{out}/checkpoints"  # frozen: only tests change it
        return asyncio.run(run_in_process(worker, **learning(kind)))

    with ThreadPoolExecutor(1) as thread:
        return found(out, thread.submit(train).result())


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.long] * (kind == "dpo")) for kind in KINDS])
def test_trials_that_take_turns_end_in_the_bytes_that_they_have_alone(
    colocated, model: Path, tmp_path: Path, common: dict[str, Any], kind: str
) -> None:
    alone = [
        trained_alone(colocated, tmp_path / f"alone-{place}", kind, common | changes)
        for place, changes in enumerate(KINDS[kind])
    ]
    assert len({str(digests) for digests, _ in alone}) == len(alone), "trials that train alike would prove nothing"
    actor = shared(model, tmp_path, **common, **KINDS[kind][0])
    trials = [trial(actor, model, tmp_path / f"{n}", **common, **changes) for n, changes in enumerate(KINDS[kind])]
    for one in trials:
        one.start(model)
    for one, steps, expected in zip(trials, together(trials, **learning(kind)), alone, strict=True):
        assert found(one.out, steps) == expected


def test_a_trial_after_another_has_a_new_critic(model: Path, tmp_path: Path, common: dict[str, Any]) -> None:
    actor = shared(model, tmp_path, **common, algorithm__type="ppo")
    first, second = (trial(actor, model, tmp_path / name, **common, algorithm__type="ppo") for name in ("a", "b"))
    first.start(model)
    steps = first.train()
    second.start(model)
    assert [one.metrics["critic/value"] for one in second.train()] == [one.metrics["critic/value"] for one in steps]
    assert steps[0].metrics["critic/value"] == 0 != steps[-1].metrics["critic/value"]
    with pytest.raises(InputError, match="trials with a critic and some without"):
        trial(actor, model, tmp_path / "c", **common).start(model)


def test_a_trial_whose_process_ends_is_forgotten_and_may_continue(
    model: Path, tmp_path: Path, common: dict[str, Any]
) -> None:
    actor = shared(model, tmp_path, **common)
    whole, other = (trial(actor, model, tmp_path / name, **common, trainer__seed=4) for name in ("whole", "other"))
    whole.start(model)
    whole.train()
    process = ended_process()
    killed = trial(actor, model, tmp_path / "killed", process.pid, **common, trainer__seed=4)
    killed.start(model)
    killed.train(stop_after=2)
    process.kill()
    process.wait()
    assert actor.shared.present() == 1
    with pytest.raises(WorkerError, match="the process of killed has ended"):  # a call that was under way
        killed.seat.update.remote(None)
    with pytest.raises(WorkerError, match=f"process {process.pid} has ended"):
        killed.start(model)
    other.start(model)
    assert set(actor.shared._seats) == {"whole", "other"} and set(actor.shared._parking._parked) == {"whole"}
    again = trial(actor, model, tmp_path / "killed", **common, trainer__seed=4)
    again.start(model)
    together([again, other])
    expected = found(whole.out, [])
    assert found(killed.out, []) == expected and found(other.out, []) == expected


def test_what_would_not_be_exact_is_refused_and_the_others_go_on(
    model: Path, tmp_path: Path, common: dict[str, Any]
) -> None:
    actor = shared(model, tmp_path, seats=2, **common)
    first = trial(actor, model, tmp_path / "first", **common)
    first.start(model)
    with pytest.raises(InputError, match="--share: got a trial that is planned otherwise"):
        trial(actor, model, tmp_path / "wide", **common, rollout__promptsPerStep=8).start(model)
    with pytest.raises(StaleAdapterError, match="without a sync"):
        actor.results.remote("first", 1)
    with pytest.raises(WorkerError, match="after a failure of first: StaleAdapterError"):
        first.seat.update.remote(None)
    assert actor.shared.failed() == "first"


def test_memory_for_parked_adapters_is_needed_from_the_start(
    model: Path, tmp_path: Path, common: dict[str, Any]
) -> None:
    actor = shared(model, tmp_path, seats=10**9, **common)
    first = trial(actor, model, tmp_path / "first", **common)
    with pytest.raises(InputError, match=r"--at-once: got 1000000000 trials, .* Set a smaller --at-once"):
        first.start(model)


def test_requests_that_come_during_anothers_turn_wait_for_their_own(
    model: Path, tmp_path: Path, common: dict[str, Any]
) -> None:
    actor = shared(model, tmp_path, **common)
    trials = [trial(actor, model, tmp_path / name, **common) for name in ("one", "two")]
    for one in trials:
        one.start(model)
        one.seat.sync.remote(1, False)
    wanted = {number: GenerationRequest([5, 6, 7], seed=number, adapter=1) for number in range(4)}

    def made(one: Trial) -> dict[int, list[int]]:
        chunks = one.seat.results.remote(4)
        return {n: c.tokens.tolist() for chunk in chunks for n, c in zip(chunk.numbers, chunk.completions, strict=True)}

    for one in trials:
        one.seat.submit.remote(wanted)
    first, second = map(made, trials)
    assert first == second and set(first) == set(wanted)
    with pytest.raises(StaleAdapterError, match="adapter version 1, expected 2"):
        trials[0].seat.submit.remote({9: GenerationRequest([5], adapter=2)})
    # One that is gone in the middle of its generation leaves nothing behind.
    trials[0].seat.submit.remote(wanted)
    abandoned = actor.shared.results("one", 4)
    next(abandoned)
    abandoned.close()
    trials[1].seat.submit.remote(wanted)
    assert made(trials[1]) == second
