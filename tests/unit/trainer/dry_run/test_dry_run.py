"""What a dry run says about the rows that it tries."""

from __future__ import annotations

from pathlib import Path

import pytest

from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.checkpoint import CheckpointStore
from lorarl_trainer.checkpoint.contents import ADAPTER_METADATA
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.data.rows import Row
from lorarl_trainer.dry_run.dry_run import long_answers, median_answer, shorter
from lorarl_trainer.dry_run.store_outlook import steps_left, store_lines
from lorarl_trainer.launch import room
from lorarl_trainer.launch.inputs import EncodedData, Vocabulary
from lorarl_trainer.launch.resumption import newest_checkpoint
from lorarl_trainer.launch.room import checkpoint_bytes
from lorarl_trainer.launch.unusual import unusual_settings
from lorarl_trainer.models.model_sizes import sizes_of
from lorarl_trainer.planning.duration import StepTime
from lorarl_trainer.storage import LocalStore
from support.checkpoints import checkpoint
from unit.contract.manifests import manifest
from unit.trainer.planning.shapes import SHAPES


class Letters:
    """A tokenizer whose tokens are letters."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[str]:
        assert not add_special_tokens, "an answer is a part of a completion"
        return list(text)


def job(tokens: int) -> LoRARLJob:
    return LoRARLJob.model_validate(manifest({"spec.rollout.maxResponseTokens": tokens}))


def test_an_answer_that_no_completion_can_be_is_a_warning() -> None:
    answers = ("12", None, "345", "6789")
    rows = [EncodedRow(Row("", answer, {}, number), [], []) for number, answer in enumerate(answers, 1)]
    vocabulary = Vocabulary(Letters(), (0,))
    (found,) = long_answers(job(2), rows, vocabulary)
    assert "the answers of 2 of these 4 rows have more tokens" in found
    assert found.endswith("(spec.rollout.maxResponseTokens: 2). That of row 3 has 3.")
    assert long_answers(job(4), rows, vocabulary) == []


def test_a_usual_answer_is_counted_as_a_completion_would_be() -> None:
    def rows(*answers: str | None) -> EncodedData:
        encoded = [EncodedRow(Row("", answer, {}, number), [], []) for number, answer in enumerate(answers, 1)]
        return EncodedData(encoded, [], {}, [], {})

    vocabulary = Vocabulary(Letters(), (0,))
    assert median_answer(rows("1", "12345", None, "123"), vocabulary) == 4, "with what ends it"
    assert median_answer(rows(None, None), vocabulary) is None
    learned = EncodedData([EncodedRow(Row("", "1", {}, 1), [1], [5, 6, 7])], [], {}, [], {})
    assert median_answer(learned, vocabulary) == 3


def stored_job(folder: Path, **checkpoints: object) -> LoRARLJob:
    changes = {f"spec.checkpoint.{name}": value for name, value in checkpoints.items()}
    return LoRARLJob.model_validate(manifest({"spec.checkpoint.uri": f"file://{folder}"} | changes))


def test_it_says_where_a_run_starts_and_what_room_its_checkpoints_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, few = sizes_of(SHAPES["0.5B"]), stored_job(tmp_path, keep=2, every=10)
    size = checkpoint_bytes(few, sizes)
    monkeypatch.setattr(room, "free_bytes", lambda _: 3 * size)
    lines = store_lines(few, sizes, None, tmp_path / "out")
    assert lines[0] == "start    from the base: there is no checkpoint of this job to resume from"
    assert len(lines) == 2 and lines[1].startswith("disk     3 checkpoints of about ")
    more = store_lines(stored_job(tmp_path, keep=3, every=10), sizes, None, tmp_path / "out")
    assert more[-1].startswith("warning: the disk has too little space")


def test_it_names_the_checkpoint_that_a_run_resumes_from(tmp_path: Path) -> None:
    job = stored_job(tmp_path)
    store = CheckpointStore(LocalStore(tmp_path), job.name, keep=2, identity={})
    store.start("Auto")
    store.publish(checkpoint(5))
    newest = newest_checkpoint(job, {}, tmp_path / "unpublished")
    lines = store_lines(job, sizes_of(SHAPES["0.5B"]), newest, tmp_path / "out")
    assert lines[0].startswith("start    resumes from ") and "iter_0000005" in lines[0]
    assert newest is not None and newest.checkpoint.adapter_metadata["step"] == 5, "what it was made of is compared"
    assert list(newest.checkpoint.files) == [ADAPTER_METADATA], "and large files are not read"
    assert steps_left(job, newest) == job.spec.trainer.steps - 5 and steps_left(job, None) == job.spec.trainer.steps


def test_it_says_that_a_finished_job_has_nothing_left_to_train(tmp_path: Path) -> None:
    job = stored_job(tmp_path)
    store = CheckpointStore(LocalStore(tmp_path), job.name, keep=2, identity={})
    store.start("Auto")
    store.publish(checkpoint(job.spec.trainer.steps))
    newest = newest_checkpoint(job, {}, tmp_path / "unpublished")
    lines = store_lines(job, sizes_of(SHAPES["0.5B"]), newest, tmp_path / "out")
    assert lines[0].startswith("start    at its end: ") and "nothing is left to train" in lines[0]
    assert "raise spec.trainer.steps" in lines[0] and len(lines) == 1, "no room is needed"


def test_gpus_that_wait_for_each_other_are_a_warning() -> None:
    def told(staleness: int, gpus: int) -> list[str]:
        changes = {
            "spec.rollout": {"separateEngines": {}, "maxStaleness": staleness},
            "spec.cluster.gpusPerNode": gpus,
            "spec.algorithm": {"type": "grpo", "correction": {"preset": "decoupled_token_is"}},
        }
        return unusual_settings(LoRARLJob.model_validate(manifest(changes)).spec)

    assert "Set maxStaleness: 1, or remove separateEngines" in told(0, 1)[0]
    assert told(1, 1) == told(0, 0) == []


def test_a_learning_rate_that_ruins_an_adapter_is_a_warning() -> None:
    def rate(value: float) -> LoRARLJob:
        return LoRARLJob.model_validate(manifest({"spec.trainer.learningRate": value}))

    assert unusual_settings(rate(2e-2).spec) == []
    assert unusual_settings(rate(1.0).spec)[0].startswith("spec.trainer.learningRate is 1. LoRA takes 1e-5 to 1e-3")


@pytest.mark.parametrize(("kind", "warned"), [("grpo", True), ("gspo", True), ("dr_grpo", False), ("ppo", False)])
def test_a_penalty_on_rewards_that_are_scaled_is_a_warning(kind: str, warned: bool) -> None:
    changes = {"type": kind, "klCoefficient": 0.01, "kl": {"placement": "reward"}}
    found = unusual_settings(LoRARLJob.model_validate(manifest({"spec.algorithm": changes})).spec)
    assert [text.startswith("spec.algorithm.kl.placement is reward") for text in found] == [True] * warned


def test_a_long_run_on_a_cpu_says_how_to_look_first() -> None:
    def said(most: float) -> list[str]:
        return shorter(LoRARLJob.model_validate(manifest({"spec.trainer.steps": 50})), StepTime(1.0, most))

    assert said(12.0) == []
    assert said(30.0) == ["         for a first look within ten minutes: --set spec.trainer.steps=20"]
    (line,) = said(400.0)
    assert "lower spec.rollout.promptsPerStep, spec.rollout.maxResponseTokens, spec.algorithm.groupSize: half" in line
