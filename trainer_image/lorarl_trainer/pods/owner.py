"""The job that this process runs for, as it is recorded in the job's folder of the store; and its pod."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.checkpoint import Owner

CLUSTER = "LORARL_CLUSTER"
"""Environment variable: what distinguishes this cluster from others, if the operator may read it."""
CLUSTER_CERTIFICATE = Path("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt")
"""The certificate of the cluster's own authority, in every pod with a ServiceAccount's token. A rotation changes it."""
POD = "LORARL_POD"
"""Environment variable: the name of the pod. The host's name is another one in the node's network."""
_DIGITS = 16


def owner_of(job: LoRARLJob) -> Owner:
    """Return whose run this is. Outside a cluster, a job has only its name."""
    if job.uid is None:
        return Owner(job.name)
    return Owner(job.name, job.uid, job.metadata.namespace, _cluster())


def pod_name() -> str:
    """Return the name of this process's pod."""
    return os.environ.get(POD) or socket.gethostname()


def _cluster() -> str | None:
    if told := os.environ.get(CLUSTER):
        return told
    try:
        return hashlib.sha256(CLUSTER_CERTIFICATE.read_bytes()).hexdigest()[:_DIGITS]
    except OSError:
        return None
