"""`lorarl purge`: deletes a job's checkpoints, for spec.checkpoint.deletionPolicy Delete."""

from __future__ import annotations

from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.storage import open_store
from lorarl_trainer.storage.secrets import read_secret


def purge(job: LoRARLJob) -> str:
    """Delete everything under the job's folder and return its URI. Needs the checkpoints' own Secret alone; again is harmless.

    Raises:
        LorarlError: the store refuses, or cannot be reached.
    """
    spec = job.spec.checkpoint
    secret = read_secret(spec.credentials_secret, "spec.checkpoint.credentialsSecret") if spec.credentials_secret else {}
    store = open_store(spec.uri, secret, field="spec.checkpoint.uri")
    store.delete_folder(job.name)
    return store.uri_of(job.name)
