"""Checkpoints in object storage: whole or absent, fenced between runs, resumable.

docs/checkpoints.md describes them for readers.
"""

from __future__ import annotations

from lorarl_trainer.checkpoint.contents import Checkpoint, Manifest, build_checkpoint
from lorarl_trainer.checkpoint.identity import Identity, differences, other_inputs
from lorarl_trainer.checkpoint.latest import Best, BestBy, Latest
from lorarl_trainer.checkpoint.owner import Owner
from lorarl_trainer.checkpoint.reader import Found
from lorarl_trainer.checkpoint.store import CheckpointStore, Published, Started
from lorarl_trainer.checkpoint.uploader import BackgroundUploader, Evaluated

__all__ = [
    "BackgroundUploader",
    "Best",
    "BestBy",
    "Checkpoint",
    "CheckpointStore",
    "Evaluated",
    "Found",
    "Identity",
    "Latest",
    "Manifest",
    "Owner",
    "Published",
    "Started",
    "build_checkpoint",
    "differences",
    "other_inputs",
]
