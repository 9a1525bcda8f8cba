"""Opens a job's checkpoints from its manifest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lorarl_api.v1alpha1 import EvalSpec, LoRARLJobSpec
from lorarl_trainer.checkpoint.identity import require_same_training
from lorarl_trainer.checkpoint.latest import BestBy
from lorarl_trainer.checkpoint.owner import Owner
from lorarl_trainer.checkpoint.store import CheckpointStore
from lorarl_trainer.samples.columns import eval_column
from lorarl_trainer.storage import open_store
from lorarl_trainer.storage.secrets import Secrets, rereader, secret_of


def open_checkpoints(
    spec: LoRARLJobSpec,
    owner: Owner,
    secrets: Secrets,
    identity: Mapping[str, Any],
    evaluations: Mapping[str, str] | None = None,
) -> CheckpointStore:
    """Return the job's checkpoints. Nothing is read yet.

    `evaluations`: the digest of each evaluation by its name, as `launch.provenance` makes it.
    """
    secret = secret_of(secrets, spec.checkpoint.credentials_secret)
    reread = rereader(spec.checkpoint.credentials_secret, "spec.checkpoint.credentialsSecret")
    store = open_store(spec.checkpoint.uri, secret, field="spec.checkpoint.uri", reread=reread)
    return CheckpointStore(
        store,
        owner.name,
        keep=None if spec.checkpoint.keep_all else spec.checkpoint.keep,
        identity=identity,
        best_by=best_by(spec, evaluations),
        owner=owner,
    )


def best_by(spec: LoRARLJobSpec, evaluations: Mapping[str, str] | None = None) -> BestBy | None:
    """Return how `spec.checkpoint.keepBest` chooses; None if it is not set. `evaluations`: see `open_checkpoints`."""
    chosen = spec.checkpoint.keep_best
    if chosen is None:
        return None
    name = chosen.eval or ""
    source = dict(spec.data.evaluations).get(name)
    scored = isinstance(source, EvalSpec) and source.reward is not None
    result = "loss" if spec.algorithm.about.learns_from == "answers" and not scored else "score"
    metric = result if chosen.pass_at_k is None else f"pass_at_{chosen.pass_at_k}"
    return BestBy(eval_column(name, metric), metric != "loss", name, (evaluations or {}).get(name, ""))


def check_checkpoints(
    spec: LoRARLJobSpec, owner: Owner, secrets: Secrets, identity: Mapping[str, Any], unpublished: Path
) -> bool:
    """Check early that the store takes checkpoints, and that those in it belong to this training. Claims nothing.

    Returns:
        Whether one of them is there to resume from, as far as its checkpoint.json says.

    Raises:
        LorarlError: the store cannot be used, or another job, another program or another training uses the folder.
    """
    store = open_checkpoints(spec, owner, secrets, identity)
    store.require_own_folder()
    store.store.require_writable(owner.name)
    if spec.checkpoint.resume == "Auto" and (found := store.newest_unverified([unpublished])) is not None:
        require_same_training(found.manifest.identity, store.identity, found.uri)
        return True
    return False
