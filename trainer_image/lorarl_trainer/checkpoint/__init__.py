"""Checkpoints in object storage: whole or absent, fenced between runs, resumable.

docs/checkpoints.md describes them for readers.
"""

from __future__ import annotations

from lorarl_trainer.checkpoint.contents import Checkpoint, Manifest, build_checkpoint
from lorarl_trainer.checkpoint.identity import Identity, differences
from lorarl_trainer.checkpoint.latest import Latest
from lorarl_trainer.checkpoint.reader import Found
from lorarl_trainer.checkpoint.store import CheckpointStore, Published, Started
from lorarl_trainer.checkpoint.uploader import BackgroundUploader

__all__ = [
    "BackgroundUploader",
    "Checkpoint",
    "CheckpointStore",
    "Found",
    "Identity",
    "Latest",
    "Manifest",
    "Published",
    "Started",
    "build_checkpoint",
    "differences",
]
