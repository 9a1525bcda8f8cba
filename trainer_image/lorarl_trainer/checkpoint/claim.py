"""Whose a job's folder is. Two jobs never share one, even if they have the same name and bucket."""

from __future__ import annotations

from datetime import datetime, timedelta

from lorarl_trainer.checkpoint.latest import Latest
from lorarl_trainer.checkpoint.owner import Owner
from lorarl_trainer.errors import InputError

LEFT_AFTER = timedelta(hours=1)
"""How long after its end a job's folder is free for a job of another namespace or cluster."""


def require_free(latest: Latest, owner: Owner, now: datetime, store_uri: str) -> None:
    """Refuse a folder that another LoRARLJob may still use.

    The newest start of the same job takes over, and so does a new job with this name in this namespace: the older one
    was deleted. A run outside a cluster is not started again by anyone, so every other start may take over from it.

    Raises:
        InputError: the folder belongs to a job of another namespace or cluster that has not ended, or ended just now.
    """
    other = latest.owner
    if other.uid in (None, owner.uid):
        return
    known = other.cluster and owner.cluster
    same_cluster = other.cluster == owner.cluster if known else owner.uid is not None
    if same_cluster and other.namespace == owner.namespace:
        return
    if latest.finished_at and now - datetime.fromisoformat(latest.finished_at) > LEFT_AFTER:
        return
    elsewhere = "" if same_cluster or owner.uid is None else " of another cluster"
    since = f"finished at {latest.finished_at}" if latest.finished_at else f"last started at {latest.claimed_at}"
    raise InputError(
        "spec.checkpoint.uri",
        f"{store_uri}, whose folder {owner.name}/ belongs to {other}{elsewhere} (uid {other.uid}, {since}, "
        f"{latest.host})",
        "a folder that no other job uses",
        "Use another metadata.name or spec.checkpoint.uri. If that job was deleted and should continue here, delete "
        f"{store_uri}/{owner.name}/latest.json: its checkpoints stay, and the next start resumes from them.",
    )
