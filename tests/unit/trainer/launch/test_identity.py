"""What makes a training the one that a checkpoint is of."""

from __future__ import annotations

from lorarl_api.load import load_job
from lorarl_trainer.checkpoint.identity import training_identity

MANIFEST = """
apiVersion: lorarl.io/v1alpha1
kind: LoRARLJob
metadata: {name: same}
spec:
  model: {uri: "file:base"}
  adapter: {targetModules: [all-linear]}
  reward: {type: exact}
  data: {train: {uri: "file:train.jsonl"}}
  checkpoint: {uri: "file:checkpoints"}
"""


def of(*changes: str) -> dict[str, object]:
    return training_identity(load_job(MANIFEST, [f"spec.{change}" for change in changes]).spec, "fingerprint")


def test_a_default_that_is_written_out_is_no_other_training() -> None:
    defaults = ("groupSize=8", "clipRange=0.2", "klCoefficient=0", "updatesPerStep=1")
    assert of(*(f"algorithm.{default}" for default in defaults)) == of()
    assert of("algorithm.clipRange=0.1") != of()


def test_what_may_change_between_two_starts_is_no_part_of_it() -> None:
    assert of("trainer.steps=5", "trainer.learningRate=1e-3", "checkpoint.every=7", "rollout.promptsPerStep=4") == of()
