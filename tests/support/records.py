"""Records of small runs, written by the sinks and the publisher that write those of real ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lorarl_api.v1alpha1 import TrackingSpec
from lorarl_trainer.checkpoint import CheckpointStore, Owner
from lorarl_trainer.progress import Event, open_progress
from lorarl_trainer.record.folder import claim_folder
from lorarl_trainer.record.publisher import RecordPublisher
from lorarl_trainer.storage import Store

PATIENCE = 30.0


def record_run(store: Store, job: str, out_dir: Path, events: Sequence[Event], log: str, *, attempt: int) -> None:
    """Play a run in the folder `out_dir`, new as in a new pod, and publish its record."""
    owner = Owner(job, "mine")
    checkpoints = CheckpointStore(store, job, keep=None, identity={}, owner=owner)
    out_dir.mkdir(parents=True, exist_ok=True)
    (out_dir / "printed").write_text(log)
    run = RecordPublisher(lambda: claim_folder(checkpoints, owner, attempt), out_dir, out_dir / "printed")
    with (
        (out_dir / "console").open("w") as console,
        open_progress(out_dir, TrackingSpec(), {}, stream=console) as sinks,
    ):
        run.start(sinks.emit)
        assert run.restore() is None
        for event in events:
            sinks.emit(event)
    assert run.finish(PATIENCE) is None
