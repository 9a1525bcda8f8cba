"""The Job that removes a deleted job's checkpoints.

Nobody owns it: in a foreground deletion the garbage collector would take it away before it has run. Its own TTL removes it.
"""

from __future__ import annotations

import json
from typing import Any

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_operator.build.config import CONFIG_FOLDER, CONFIG_KEY, SECRETS_FOLDER, manifest
from lorarl_operator.build.pods import image_of, pod_security_context, pull_secrets, secret_volumes, security_context, tolerations
from lorarl_operator.names import cleanup_account_name, cleanup_name, labels
from lorarl_operator.objects import LABEL_ROLE, Job
from lorarl_operator.settings import Settings

MANIFEST_ANNOTATION = "lorarl.io/manifest"
"""Holds the manifest as JSON, and is mounted as a file: the job's ConfigMap may be gone already."""
CLEANUP = "cleanup"
_KEEP_SECONDS = 300


def cleanup_job(job: Job, spec: LoRARLJobSpec, settings: Settings) -> dict[str, Any]:
    """The Job: `lorarl purge` with the trainer's image and the Secret of the checkpoints."""
    cluster = spec.cluster
    account = cluster.service_account_name or (cleanup_account_name(job.name) if cluster.service_account_annotations else None)
    secrets, mounts = secret_volumes([spec.checkpoint.credentials_secret] if spec.checkpoint.credentials_secret else [])
    container = {
        "name": CLEANUP,
        **image_of(spec, settings),
        "command": ["lorarl", "purge", f"{CONFIG_FOLDER}/{CONFIG_KEY}"],
        "env": [{"name": "LORARL_SECRETS_DIR", "value": SECRETS_FOLDER}],
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": security_context(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "job", "mountPath": CONFIG_FOLDER, "readOnly": True}, *mounts],
    }
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": pod_security_context(),
        **({"serviceAccountName": account} if account else {}),
        **pull_secrets(spec),
        **tolerations(spec),
        "containers": [container],
        "volumes": [
            {
                "name": "job",
                "downwardAPI": {
                    "items": [{"path": CONFIG_KEY, "fieldRef": {"fieldPath": f"metadata.annotations['{MANIFEST_ANNOTATION}']"}}],
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
            "activeDeadlineSeconds": settings.cleanup_seconds,
            "ttlSecondsAfterFinished": _KEEP_SECONDS,
            "template": {"metadata": about, "spec": pod},
        },
    }
