"""A run continues when the adapter that it started from is gone: its checkpoint has all of the adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.checkpoint import CheckpointStore
from lorarl_trainer.checkpoint.identity import training_identity
from lorarl_trainer.errors import InputError
from lorarl_trainer.launch.preparation import Stored, look_into_stores
from lorarl_trainer.models.model_sizes import sizes_of
from lorarl_trainer.storage import LocalStore
from lorarl_trainer.timing import StartClock
from support.checkpoints import checkpoint
from unit.contract.manifests import SFT, Changes, manifest
from unit.trainer.planning.shapes import SHAPES

PRINT = "heads.tensors"
DPO: dict[str, Any] = {"spec.algorithm": {"type": "dpo"}, "spec.reward": None}
FROM_START: Changes = {"spec.algorithm": {"type": "grpo", "klCoefficient": 0.1, "kl": {"reference": "start"}}}


def job(folder: Path, changes: Changes) -> LoRARLJob:
    places = {"spec.adapter.initFrom": f"file:{folder}/gone", "spec.checkpoint": {"uri": f"file:{folder}/store"}}
    return LoRARLJob.model_validate(manifest({**changes, **places}))


def look(made: LoRARLJob, folder: Path) -> Stored:
    clock = StartClock("driver", "process")
    return look_into_stores(made, {}, folder / "unpublished", PRINT, sizes_of(SHAPES["0.5B"]), clock)


def publish(made: LoRARLJob, folder: Path) -> None:
    store = CheckpointStore(
        LocalStore(folder / "store"), made.name, keep=1, identity=training_identity(made.spec, PRINT)
    )
    store.claim()
    store.publish(checkpoint(1))


@pytest.mark.parametrize("changes", [{}, SFT, {"spec.algorithm": {"type": "ppo"}}], ids=["grpo", "sft", "ppo"])
def test_a_run_with_a_checkpoint_goes_on_without_its_start(tmp_path: Path, changes: Changes) -> None:
    made = job(tmp_path, changes)
    with pytest.raises(InputError, match=r"spec.adapter.initFrom: got file:.*/gone, which does not exist"):
        look(made, tmp_path)
    publish(made, tmp_path)
    stored = look(made, tmp_path)
    assert stored.initial_adapter is None
    (warning,) = stored.warnings(1)
    assert "gone, which does not exist" in warning and "continues from its checkpoint" in warning
    with pytest.raises(InputError, match="which does not exist"):
        stored.warnings(0)  # no checkpoint was whole after all


@pytest.mark.parametrize("changes", [DPO, FROM_START], ids=["dpo", "kl"])
def test_a_start_that_is_the_reference_has_to_be_there(tmp_path: Path, changes: Changes) -> None:
    made = job(tmp_path, changes)
    publish(made, tmp_path)
    with pytest.raises(InputError, match="which does not exist"):
        look(made, tmp_path)
