"""Whether others see what pods write to a folder: the next pods their checkpoints, and servers their adapters."""

from __future__ import annotations

import posixpath
from typing import Any

from lorarl_api.faults import Fault, ManifestError, shown
from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_operator.manifests.placement import Template

_DELETED_WITH_THE_POD = ("emptyDir", "ephemeral", "configMap", "secret", "downwardAPI", "projected")
"""Volumes that are made for one pod."""


def require_lasting_folder(spec: LoRARLJobSpec, head: Template, worker: Template) -> None:
    """Refuse checkpoints that would be deleted with the pods. Both head and workers must mount their folder.

    Raises:
        ManifestError: The folder is on no volume, or on one that is deleted with its pod or cannot be written.
    """
    uri = spec.checkpoint.uri
    if not uri.startswith("file:"):
        return
    for role, template in (("head", head), ("worker", worker)):
        if why := _why_lost(uri, template["spec"]):
            raise ManifestError(
                [
                    Fault(
                        "spec.checkpoint.uri",
                        f"{shown(uri)}, which {why} in the {role} pod",
                        "file:///FOLDER on a volume that outlives the pods, at the same place in head and workers",
                        "Use s3://, gs://, az:// or pvc://CLAIM/FOLDER, or mount such a volume in both by "
                        "cluster.podTemplateOverrides.",
                    )
                ]
            )


def require_seen_folder(spec: LoRARLJobSpec, worker: Template) -> None:
    """Refuse adapters for servers in a folder that only the worker has.

    Raises:
        ManifestError: The folder is on no volume, or on one that is the pod's own or cannot be written.
    """
    if spec.servers and spec.rollout.server_folder and (why := _why_lost(spec.rollout.server_folder, worker["spec"])):
        raise ManifestError(
            [
                Fault(
                    "spec.rollout.serverFolder",
                    f"{shown(spec.rollout.server_folder)}, which {why} in the worker pod",
                    "a folder on a volume that the servers mount too, under the same path",
                    "Mount such a volume by cluster.podTemplateOverrides.worker.",
                )
            ]
        )


def _why_lost(uri: str, pod: dict[str, Any]) -> str | None:
    """Return why files in a folder of this pod would be lost; None if they stay."""
    folder = uri.removeprefix("file:")
    if not folder.startswith("/"):
        return "is relative to the working directory"
    folder = posixpath.normpath(f"/{folder.lstrip('/')}")
    container: dict[str, Any] = next(iter(pod.get("containers") or ()), {})  # an override may have removed it
    mounts = [mount for mount in container.get("volumeMounts") or () if _is_below(folder, mount)]
    if not mounts:
        return "is on no volume"
    mount = max(mounts, key=lambda mount: len(str(mount["mountPath"]).rstrip("/")))
    volume: dict[str, Any] = next(
        (each for each in pod.get("volumes") or () if each.get("name") == mount.get("name")), {}
    )
    if kind := next((kind for kind in _DELETED_WITH_THE_POD if kind in volume), None):
        return f"is on a volume of the kind {kind}"
    return "is on a volume that is mounted read-only" if mount.get("readOnly") else None


def _is_below(folder: str, mount: dict[str, Any]) -> bool:
    path = posixpath.normpath(str(mount.get("mountPath", "")))
    return folder == path or folder.startswith(f"{path.rstrip('/')}/")
