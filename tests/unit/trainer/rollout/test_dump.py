"""Rollouts in files: what is read is what was written, and a folder that cannot be replayed is refused at once."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path

import numpy as np
import pytest

from lorarl_api.load import load_job
from lorarl_trainer.errors import InputError
from lorarl_trainer.launch.replay import Rehearsal
from lorarl_trainer.protocols.rollouts import StepBatch
from lorarl_trainer.rollout.dump import Dump, dumped_steps, read_step
from lorarl_trainer.samples.agreement import AgreementLimits
from lorarl_trainer.samples.sample import Sample
from unit.trainer.launch.test_identity import MANIFEST

LIMITS = AgreementLimits(1e-5, 2e-3)


def batch(
    *,
    teacher: bool = False,
    kept: bool = False,
    masked: bool = False,
    routed: bool = False,
    stale: bool = False,
    sequences: bool = False,
) -> StepBatch:
    stream = np.random.default_rng(0)
    samples = []
    for index, (prompt, response) in enumerate([(2, 3), (2, 1), (4, 5), (4, 2)]):
        mask = np.array([True] * (response - 1) + [False]) if masked and index == 2 else None
        trained = response if mask is None else int(mask.sum())
        samples.append(
            Sample(
                stream.integers(0, 99, prompt + response),
                prompt,
                rollout_logprobs=stream.normal(size=trained).astype(np.float32),
                kept=stream.integers(1, 9, trained) if kept else None,
                mask=mask,
                routing=stream.integers(0, 9, (prompt + response - 1, 2, 3)).astype(np.uint8) if routed else None,
                fresh=not stale or index != 2,
            )
        )
    taught = [None if index == 1 else s.rollout_logprobs for index, s in enumerate(samples)] if teacher else ()
    rewards = np.array([[1.0, np.nan]] if sequences else [[1.0, np.nan], [0.25, 0.5]])
    made = StepBatch(samples, rewards, 0.7, on_policy=True, metrics={"reward_mean": 0.58}, teacher_S=taught)
    return dataclasses.replace(made, counts=[1, 3]) if sequences else made


def write(folder: Path, steps: list[int], of: StepBatch | None = None) -> None:
    dump = Dump(folder, "made", "file:checkpoints")
    for step in steps:
        dump.keep(step, of or batch(), [0.5, 0.0, -1.0, np.ones(2, np.float32)], step, 2 * step, LIMITS)


@pytest.mark.parametrize(
    "parts",
    [{}, *({part: True} for part in ("teacher", "kept", "masked", "routed", "stale", "sequences"))],
)
def test_what_is_read_is_what_was_written(tmp_path: Path, parts: dict[str, bool]) -> None:
    written = batch(**parts)
    write(tmp_path / "made" / "here", [3], written)
    read, described = read_step(tmp_path / "made" / "here", 3)
    assert len(read.samples_S) == len(written.samples_S)
    for ours, theirs in zip(written.samples_S, read.samples_S, strict=True):
        np.testing.assert_equal(dataclasses.asdict(theirs), dataclasses.asdict(ours))
    np.testing.assert_equal(list(read.teacher_S), list(written.teacher_S))
    np.testing.assert_equal(read.rewards_P_G, written.rewards_P_G)
    assert list(read.counts) == list(written.counts)
    assert (read.temperature, read.on_policy, read.metrics) == (0.7, True, {"reward_mean": 0.58})
    assert read.limits == LIMITS
    assert (described["adapterVersion"], described["position"], described["job"]) == (3, 6, "made")


def replayed(folder: Path, *changes: str) -> object:
    return Rehearsal(replay=folder).of(load_job(MANIFEST, [f"spec.{change}" for change in changes]))


def test_a_replay_has_neither_engine_nor_evaluations(tmp_path: Path) -> None:
    write(tmp_path, [1, 2])
    evals = "data.evals=[{name: hard, uri: 'file:hard.jsonl'}]"
    best = "checkpoint.keepBest={eval: hard}"
    job = replayed(tmp_path, "trainer.steps=2", evals, best)
    spec = pickle.loads(pickle.dumps(job)).spec  # as it travels to the workers
    assert not spec.generates and not spec.data.evaluations and spec.checkpoint.keep_best is None
    assert spec.model_copy(update={"suspend": True}).generates is False


@pytest.mark.parametrize(
    ("steps", "changes", "message"),
    [
        ([], (), "without rollouts"),
        ([1, 2], ("trainer.steps=4",), "without step 3.*spec.trainer.steps=2"),
        ([1, 3], ("trainer.steps=3",), "without step 2"),
        ([1], ("trainer.steps=1", "algorithm.type=sft", "reward=null"), "a job of the type sft"),
    ],
)
def test_what_cannot_be_replayed_is_refused(
    tmp_path: Path, steps: list[int], changes: tuple[str, ...], message: str
) -> None:
    write(tmp_path, steps)
    with pytest.raises(InputError, match=f"^--replay: .*{message}"):
        replayed(tmp_path, *changes)


def test_a_replay_does_not_write_into_the_checkpoints_of_the_run(tmp_path: Path) -> None:
    Dump(tmp_path, "same", "file:checkpoints").keep(1, batch(), [0.0] * 4, 1, 2, LIMITS)
    with pytest.raises(InputError, match=r"--set metadata\.name=same-replay"):
        replayed(tmp_path, "trainer.steps=1")


@pytest.mark.parametrize("broken", ["step_0000001.json", "step_0000001.safetensors"])
def test_a_step_that_is_not_whole_is_refused(tmp_path: Path, broken: str) -> None:
    write(tmp_path, [1])
    path = tmp_path / broken
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"--replay: .*cannot be read"):
        read_step(tmp_path, 1)


def test_steps_are_found_by_their_files(tmp_path: Path) -> None:
    write(tmp_path, [12, 3])
    (tmp_path / "notes.json").write_text("{}")
    assert dumped_steps(tmp_path) == [3, 12]
