"""Writes and deletes the folder of one checkpoint."""

from __future__ import annotations

from lorarl_trainer.checkpoint.contents import CARD, MANIFEST, Checkpoint, Manifest
from lorarl_trainer.checkpoint.ownership import objects, own_files, read_manifest
from lorarl_trainer.storage import UPLOADS, Store
from lorarl_trainer.threads import in_parallel


def write_folder(store: Store, prefix: str, checkpoint: Checkpoint, manifest: Manifest) -> bool:
    """Write a checkpoint's files at `prefix`, checkpoint.json last. Overwrites nothing.

    Returns:
        False if a file with other contents exists there. A killed run's leftover with the same contents is used as it
        is.
    """
    files = list(checkpoint.files.items())
    if not all(in_parallel(lambda file: store.put_if_absent(f"{prefix}/{file[0]}", file[1]), files, UPLOADS)):
        return False
    if checkpoint.card is not None:
        store.put_if_absent(f"{prefix}/{CARD}", checkpoint.card)
    path = f"{prefix}/{MANIFEST}"
    if store.put_if_absent(path, manifest.to_bytes()):
        return True
    try:
        return Manifest.from_bytes(store.get(path) or b"").same_contents(manifest)
    except ValueError:
        return False


def delete_checkpoint(store: Store, job: str, folder: str) -> None:
    """Delete the files of one checkpoint. It may be repeated.

    checkpoint.json is deleted last, because it says what else is to be deleted.
    """
    prefix = f"{job}/{folder}"
    if present := objects(store, prefix):
        own = own_files(present, read_manifest(store, prefix), job)
        store.delete([f"{prefix}/{path}" for path in own if path != MANIFEST])
        store.delete([f"{prefix}/{path}" for path in own if path == MANIFEST])
