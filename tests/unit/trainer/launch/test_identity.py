"""The identity of a training decides whether it may resume from a checkpoint."""

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


def identity_with(*changes: str) -> dict[str, object]:
    return training_identity(load_job(MANIFEST, [f"spec.{change}" for change in changes]).spec, "fingerprint")


def test_writing_out_a_default_does_not_change_the_identity() -> None:
    defaults = ("groupSize=8", "clipRange=0.2", "klCoefficient=0", "updatesPerStep=1")
    assert identity_with(*(f"algorithm.{default}" for default in defaults)) == identity_with()
    assert identity_with("algorithm.clipRange=0.1") != identity_with()


def test_fields_that_may_change_are_not_part_of_the_identity() -> None:
    assert (
        identity_with("trainer.steps=5", "trainer.learningRate=1e-3", "checkpoint.every=7", "rollout.promptsPerStep=4")
        == identity_with()
    )
