"""Opens the record of a run from its manifest."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.checkpoint import CheckpointStore, Owner
from lorarl_trainer.record.contents import standard_output
from lorarl_trainer.record.folder import claim_folder
from lorarl_trainer.record.publisher import RecordPublisher
from lorarl_trainer.storage import LocalStore, RetryPolicy, open_store
from lorarl_trainer.storage.secrets import Secrets, rereader, secret_of

RETRIES = RetryPolicy(deadline_seconds=60.0, read_deadline_seconds=20.0)
"""A record that cannot be written soon is written with the next checkpoint."""


def open_record(
    job: LoRARLJob, owner: Owner, secrets: Secrets, out_dir: Path, *, attempt: int | None = None
) -> RecordPublisher | None:
    """Return what publishes the record of a run to the checkpoints' store. Nothing is sent yet.

    A run on one machine with checkpoints in a folder has no record: its own folder stays there as well.

    `owner`: the same job, as it is named in the store. `attempt`: the number that the operator gave this start; None
    outside a cluster.

    Raises:
        InputError: the store's URI or its Secret cannot be used.
    """
    spec = job.spec.checkpoint
    secret = secret_of(secrets, spec.credentials_secret)
    reread = rereader(spec.credentials_secret, "spec.checkpoint.credentialsSecret")
    store = open_store(spec.uri, secret, field="spec.checkpoint.uri", retries=RETRIES, reread=reread)
    if attempt is None and isinstance(store, LocalStore) and spec.uri.startswith("file:"):
        return None
    checkpoints = CheckpointStore(store, owner.name, keep=None, identity={}, owner=owner)
    return RecordPublisher(partial(claim_folder, checkpoints, owner, attempt), out_dir, standard_output())
