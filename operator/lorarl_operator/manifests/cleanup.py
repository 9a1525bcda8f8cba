"""The Job that removes a deleted job's checkpoints.

Nobody owns it: in a foreground deletion the garbage collector would take it away before it has run. Its own TTL removes it.
"""

from __future__ import annotations

import json
import math
from datetime import datetime
from typing import Any

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_operator.manifests.config import CONFIG_FOLDER, CONFIG_KEY, SECRETS_FOLDER, manifest
from lorarl_operator.manifests.overrides import merge
from lorarl_operator.manifests.pods import (
    HEAD,
    image_of,
    pod_security_context,
    pull_secrets,
    secret_volumes,
    security_context,
    tolerations,
)
from lorarl_operator.models import LABEL_ROLE, Job
from lorarl_operator.names import cleanup_account_name, cleanup_name, labels
from lorarl_operator.settings import Settings

MANIFEST_ANNOTATION = "lorarl.io/manifest"
"""Holds the manifest as JSON, and is mounted as a file: the job's ConfigMap may be gone already."""
CLEANUP = "cleanup"
_KEEP_SECONDS = 300
_OF_POD = (
    "volumes",
    "hostAliases",
    "dnsPolicy",
    "dnsConfig",
    "hostNetwork",
    "enableServiceLinks",
    "imagePullSecrets",
    "nodeSelector",
    "tolerations",
    "securityContext",
)
_OF_CONTAINER = ("env", "envFrom", "volumeMounts")
"""What of the head's overrides the way to the store may depend on: identities, proxies, certificates, mounted credentials. The pod's
security context says as whom the image runs; what a container may do besides, no clean-up needs."""


def cleanup_job(job: Job, spec: LoRARLJobSpec, settings: Settings, until: datetime, left: float) -> dict[str, Any]:
    """The Job: `lorarl purge` with the trainer's image and the Secret of the checkpoints.

    Args:
        job: The job that is being deleted.
        spec: Its spec, checked.
        settings: Of the operator.
        until: When the operator gives way: after that a new job may have the name, and nothing may be deleted any more, however long
            something held the Job up.
        left: Seconds until then.
    """
    cluster = spec.cluster
    account = cluster.service_account_name or (
        cleanup_account_name(job.name) if cluster.service_account_annotations else None
    )
    secrets, mounts = secret_volumes([spec.checkpoint.credentials_secret] if spec.checkpoint.credentials_secret else [])
    container = {
        "name": CLEANUP,
        **image_of(spec, settings),
        "command": ["lorarl", "purge", f"{CONFIG_FOLDER}/{CONFIG_KEY}"],
        "env": [
            {"name": "LORARL_SECRETS_DIR", "value": SECRETS_FOLDER},
            {"name": "LORARL_PURGE_UNTIL", "value": f"{until:%FT%TZ}"},
        ],
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": security_context(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "job", "mountPath": CONFIG_FOLDER, "readOnly": True}, *mounts],
    }
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": pod_security_context(),
        "enableServiceLinks": False,
        **({"serviceAccountName": account} if account else {}),
        **pull_secrets(spec),
        **tolerations(spec),
        "containers": [container],
        "volumes": [
            {
                "name": "job",
                "downwardAPI": {
                    "items": [
                        {
                            "path": CONFIG_KEY,
                            "fieldRef": {"fieldPath": f"metadata.annotations['{MANIFEST_ANNOTATION}']"},
                        }
                    ],
                },
            },
            *secrets,
        ],
    }
    about = {
        "labels": labels(job) | {LABEL_ROLE: CLEANUP},
        "annotations": {MANIFEST_ANNOTATION: json.dumps(manifest(job), separators=(",", ":"))},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": cleanup_name(job.name), "namespace": job.namespace, "labels": labels(job)},
        "spec": {
            "backoffLimit": 3,
            "activeDeadlineSeconds": max(1, math.floor(left)),
            "ttlSecondsAfterFinished": _KEEP_SECONDS,
            "template": _like_the_head({"metadata": about, "spec": pod}, spec),
        },
    }


def _like_the_head(template: dict[str, Any], spec: LoRARLJobSpec) -> dict[str, Any]:
    """With what of `cluster.podTemplateOverrides.head` the way to the store may depend on; the labels of ours win."""
    head = spec.cluster.pod_template_overrides.head
    if head is None:
        return template
    given = head.model_dump(exclude_none=True)
    pod: dict[str, Any] = given.get("spec", {})
    ray: dict[str, Any] = next((one for one in pod.get("containers", []) if one.get("name") == f"ray-{HEAD}"), {})
    container = {"name": CLEANUP, **{key: ray[key] for key in _OF_CONTAINER if key in ray}}
    laid = {"spec": {"containers": [container], **{key: pod[key] for key in _OF_POD if key in pod}}}
    about = {key: given["metadata"][key] for key in ("labels", "annotations") if key in given.get("metadata", {})}
    merged = merge(template, {"metadata": about, **laid}, "spec.cluster.podTemplateOverrides.head")
    ours = template["metadata"]
    merged["metadata"] = {key: {**merged["metadata"].get(key, {}), **ours[key]} for key in ("labels", "annotations")}
    return merged
