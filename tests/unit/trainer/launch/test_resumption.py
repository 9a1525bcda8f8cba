"""What a resumed run says of its manifest, and what the next start will do, by what is in the store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.checkpoint import CheckpointStore
from lorarl_trainer.checkpoint.identity import training_identity
from lorarl_trainer.launch.resumption import (
    STARTS,
    beyond_last_step,
    changes,
    changes_since_last_start,
    finished_adapter,
    keep_manifest,
    left_unfinished,
    what_next,
)
from lorarl_trainer.storage import LocalStore
from lorarl_trainer.storage.fingerprint import fingerprint
from support.checkpoints import checkpoint
from unit.contract.manifests import manifest


def job(changed: dict[str, Any] | None = None) -> LoRARLJob:
    return load_job(json.dumps(manifest(changed or {})))


def test_each_changed_field_is_named_with_both_values() -> None:
    before = job({"spec.trainer.learningRate": 2e-5, "spec.trainer.steps": 100})
    now = job({"spec.trainer.learningRate": 1e-4, "spec.trainer.steps": 200, "spec.data.eval": {"uri": "file:e.jsonl"}})
    assert "trainer.learningRate 2e-05 -> 0.0001" in changes(before, now)
    assert "trainer.steps 100 -> 200" in changes(before, now)
    assert "data.eval.uri unset -> file:e.jsonl" in changes(before, now)


def test_a_default_that_is_written_out_is_no_change() -> None:
    assert changes(job(), job({"spec.trainer.learningRate": job().spec.trainer.learning_rate})) == []


def test_a_checkpoint_after_the_last_step_is_told() -> None:
    assert beyond_last_step(6, 0) == beyond_last_step(6, 6) == []
    (found,) = beyond_last_step(3, 6)
    assert "spec.trainer.steps is 3, and the newest checkpoint is of step 6: there is nothing left to train" in found


def test_rows_that_nothing_answers_any_more_are_told() -> None:
    partial = {
        "spec.rollout.partial": {"extraPrompts": 2},
        "spec.algorithm.correction": {"preset": "decoupled_token_is"},
    }
    assert left_unfinished(job(partial).spec, [8, 9]) == left_unfinished(job().spec, []) == []
    (found,) = left_unfinished(job().spec, [8, 9])
    assert "spec.rollout.partial is no longer set, and the answers to 2 rows of spec.data.train had not ended" in found


def test_the_manifest_of_every_start_is_kept_and_the_last_is_compared(tmp_path: Path) -> None:
    assert changes_since_last_start(tmp_path, job()) == []
    for number, rate in enumerate((2e-5, 5e-5)):
        text = json.dumps(manifest({"spec.trainer.learningRate": rate}))
        keep_manifest(tmp_path, text, resumed_from_step=5 * number or None)
    assert sorted(path.name for path in (tmp_path / STARTS).iterdir()) == [
        "0001-after-step-0.yaml",
        "0002-after-step-5.yaml",
    ]
    assert changes_since_last_start(tmp_path, job({"spec.trainer.learningRate": 1e-4})) == [
        "trainer.learningRate 5e-05 -> 0.0001"
    ]


def test_a_manifest_of_another_release_is_passed_over(tmp_path: Path) -> None:
    keep_manifest(tmp_path, "spec: {}", None)
    assert changes_since_last_start(tmp_path, job()) == []


@pytest.mark.parametrize(
    ("resume", "published", "said"),
    [
        ("Auto", False, "no checkpoint is published yet, so the same command starts from the beginning"),
        ("Auto", True, "the same command resumes from the newest checkpoint, {uri}"),
        ("Never", True, "the same command starts from the beginning, because spec.checkpoint.resume is Never"),
    ],
)
def test_the_next_start_follows_from_the_store(tmp_path: Path, resume: str, published: bool, said: str) -> None:
    uri = ""
    asked = job({"spec.checkpoint": {"uri": f"file://{tmp_path}/store", "resume": resume}})
    if published:
        store = CheckpointStore(LocalStore(tmp_path / "store"), asked.name, keep=2, identity={})
        store.start("Auto")
        uri = store.publish(checkpoint(7)).uri
    assert what_next(asked, {}, tmp_path / "unpublished") == said.format(uri=uri)


class Asked:
    """A job of seven steps with a base model, a run's folder and a store, each in its own folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.base, self.out = folder, folder / "base", folder / "out"
        self.base.mkdir()
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (self.base / name).write_text("{}")
        self.weigh("{}")

    def weigh(self, config: str) -> None:
        (self.base / "config.json").write_text(config)
        (self.base / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")

    def job(self, more: dict[str, Any] | None = None) -> LoRARLJob:
        here = {"spec.checkpoint": {"uri": f"file:{self.folder}/store"}, "spec.trainer.steps": 7}
        return job({**here, "spec.model.uri": f"file:{self.base}", **(more or {})})

    def start(self, state: str) -> None:
        keep_manifest(self.out, self.job().model_dump_json(by_alias=True, exclude_unset=True), None)
        self.summarize(state)

    def summarize(self, state: str, job: str = "") -> None:
        summary = {"job": job or self.job().name, "state": state, "step": 7}
        (self.out / "run_summary.json").write_text(json.dumps(summary))

    def publish(self, *, finish: bool) -> None:
        identity = training_identity(self.job().spec, fingerprint(self.base))
        store = CheckpointStore(LocalStore(self.folder / "store"), self.job().name, keep=2, identity=identity)
        store.start("Auto")
        store.publish(checkpoint(7))
        if finish:
            store.finish()

    def adapter(self, more: dict[str, Any] | None = None, *, without_files: bool = False) -> str | None:
        return finished_adapter(self.job(more), {}, self.out, self.folder / "unpublished", without_files=without_files)


def test_a_job_is_finished_if_its_last_start_and_the_store_say_so(tmp_path: Path) -> None:
    asked = Asked(tmp_path)
    assert not asked.adapter(), "it was never started"
    asked.start("succeeded")
    assert not asked.adapter(), "there is no checkpoint"
    asked.publish(finish=False)
    assert (asked.adapter() or "").endswith("/iter_0000007/lora_adapter")
    assert not asked.adapter({"spec.trainer.steps": 8}), "a step is left"
    assert asked.adapter({"spec.trainer.learningRate": 0.5}), "nothing is left to train with it"
    assert not asked.adapter({"spec.trainer.seed": 5}), "another training, which a start refuses"
    asked.summarize("failed")
    assert not asked.adapter()
    asked.summarize("succeeded", job="another")
    assert not asked.adapter(), "the folder is another job's"


def test_the_same_manifest_with_other_weights_is_not_finished(tmp_path: Path) -> None:
    asked = Asked(tmp_path)
    asked.start("succeeded")
    asked.publish(finish=True)
    assert asked.adapter()
    asked.weigh('{"model_type": "llama"}')
    assert not asked.adapter(), "a start refuses it, and names the difference"


def test_a_job_whose_folder_is_gone_is_finished_if_its_store_says_so(tmp_path: Path) -> None:
    asked = Asked(tmp_path)
    asked.publish(finish=False)
    assert not asked.adapter(without_files=True), "its last evaluation may be missing"
    asked.publish(finish=True)
    assert asked.adapter(without_files=True)
    assert not asked.adapter(), "a start brings the record back, where the store has it"
    for change in ({"spec.trainer.seed": 5}, {"spec.trainer.steps": 8}, {"spec.trainer.steps": 6}):
        assert not asked.adapter(change, without_files=True), change


def test_where_the_store_does_not_answer_nothing_false_is_said(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    latest = tmp_path / "store" / job().name / "latest.json"
    latest.mkdir(parents=True)  # a folder in its place cannot be read
    asked = job({"spec.checkpoint": {"uri": f"file://{tmp_path}/store"}})
    assert what_next(asked, {}, tmp_path / "unpublished") == (
        "checkpoints that are published stay, and the same command resumes from the newest one"
    )
