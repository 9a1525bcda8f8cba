"""The Job that removes a deleted job's checkpoints.

It has no owner: in a foreground deletion the garbage collector would delete it before it has run. Its own TTL removes
it.
"""

from __future__ import annotations

import json
import math
from datetime import datetime
from typing import Any

from lorarl_api.pod_merge import merge
from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_operator.decide.models import LABEL_ROLE, Job
from lorarl_operator.decide.names import cleanup_account_name, cleanup_name, labels
from lorarl_operator.decide.settings import Settings
from lorarl_operator.manifests.config import CONFIG_FOLDER, CONFIG_KEY, SECRETS_FOLDER, manifest
from lorarl_operator.manifests.environment import ca_volumes, variables
from lorarl_operator.manifests.placement import HEAD, head_node
from lorarl_operator.manifests.pods import (
    NO_GPUS,
    SCRATCH_FOLDER,
    claim_volumes,
    image_of,
    pod_security_context,
    pull_secrets,
    scratch_volume,
    secret_volumes,
    security_context,
)

MANIFEST_ANNOTATION = "lorarl.io/manifest"
"""Annotation with the manifest as JSON. It is mounted as a file, because the job's ConfigMap may already be deleted."""
CLEANUP = "cleanup"
_KEEP_SECONDS = 300
_EXIT_NOT_OURS = 77
"""Exit code of `lorarl purge` if nothing proves that the folder is the job's. Another try would not change that."""
_SUMMARY = "/dev/termination-log"
"""What is written there becomes the container's message, which the operator reads."""
_POD_FIELDS = (
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
_CONTAINER_FIELDS = ("env", "envFrom", "volumeMounts")
"""The parts of the head's overrides that access to the store may depend on.

These are identities, proxies, certificates and mounted credentials. The pod's security context says which user the
image runs as. The clean-up needs no other permissions of a container.
"""


def cleanup_job(job: Job, spec: LoRARLJobSpec, settings: Settings, until: datetime, left: float) -> dict[str, Any]:
    """The Job: `lorarl purge` with the trainer's image and the Secret of the checkpoints.

    `until`: When the operator gives up. After that a new job may have this name, so nothing may be deleted any more,
    even if the Job starts late.
    """
    cluster = spec.cluster
    account = cluster.service_account_name or (
        cleanup_account_name(job.name) if cluster.service_account_annotations else None
    )
    claim = spec.checkpoint_claim
    claims, claim_mounts = claim_volumes([claim] if claim else [], claim)
    cas, ca_mounts = ca_volumes(spec)
    secrets, mounts = secret_volumes([spec.checkpoint.credentials_secret] if spec.checkpoint.credentials_secret else [])
    scratch, scratch_mount = scratch_volume()
    container = {
        "name": CLEANUP,
        **image_of(spec, settings),
        "command": ["lorarl", "purge", f"{CONFIG_FOLDER}/{CONFIG_KEY}"],
        "env": [
            NO_GPUS,
            {"name": "HOME", "value": SCRATCH_FOLDER},
            {"name": "LORARL_SECRETS_DIR", "value": SECRETS_FOLDER},
            {"name": "LORARL_PURGE_UNTIL", "value": f"{until:%FT%TZ}"},
            {"name": "LORARL_PURGE_SUMMARY", "value": _SUMMARY},
            *({"name": name, "value": value} for name, value in variables(spec).items()),
        ],
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": security_context(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "job", "mountPath": CONFIG_FOLDER, "readOnly": True},
            scratch_mount,
            *mounts,
            *claim_mounts,
            *ca_mounts,
        ],
    }
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": pod_security_context(spec),
        "enableServiceLinks": False,
        **({"serviceAccountName": account} if account else {}),
        **pull_secrets(spec),
        **head_node(spec),
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
            *claims,
            *cas,
            scratch,
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
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "FailJob",
                        "onExitCodes": {"containerName": CLEANUP, "operator": "In", "values": [_EXIT_NOT_OURS]},
                    }
                ]
            },
            "activeDeadlineSeconds": max(1, math.floor(left)),
            "ttlSecondsAfterFinished": _KEEP_SECONDS,
            "template": _like_the_head({"metadata": about, "spec": pod}, spec),
        },
    }


def _like_the_head(template: dict[str, Any], spec: LoRARLJobSpec) -> dict[str, Any]:
    """Apply the parts of `cluster.podTemplateOverrides.head` that access to the store may depend on. Our labels win."""
    head = spec.cluster.pod_template_overrides.head
    if head is None:
        return template
    given = head.model_dump(exclude_none=True)
    pod: dict[str, Any] = given.get("spec", {})
    ray: dict[str, Any] = next((one for one in pod.get("containers", []) if one.get("name") == f"ray-{HEAD}"), {})
    container = {"name": CLEANUP, **{key: ray[key] for key in _CONTAINER_FIELDS if key in ray}}
    override = {"spec": {"containers": [container], **{key: pod[key] for key in _POD_FIELDS if key in pod}}}
    about = {key: given["metadata"][key] for key in ("labels", "annotations") if key in given.get("metadata", {})}
    merged = merge(template, {"metadata": about, **override}, "spec.cluster.podTemplateOverrides.head")
    ours = template["metadata"]
    merged["metadata"] = {key: {**merged["metadata"].get(key, {}), **ours[key]} for key in ("labels", "annotations")}
    return merged
