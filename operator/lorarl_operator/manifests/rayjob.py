"""The RayJob of an attempt, as KubeRay 1.6's validation and Kueue 0.19's webhook require it.

The operator creates it once and never changes it: suspend, nodeSelector and tolerations belong to the queue that admits
it.
"""

from __future__ import annotations

import json
from typing import Any

from lorarl_api.environment_pods import ENVIRONMENT_RESOURCE
from lorarl_api.separate_engines import ENGINE_RESOURCE
from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_operator.decide.models import (
    ANNOTATION_GENERATION,
    ANNOTATION_PASSED,
    ANNOTATION_PODS,
    ANNOTATION_TEMPLATE,
    LABEL_JOB_UID,
    WORKER_GROUP,
    Job,
)
from lorarl_operator.decide.names import metadata, ray_job_name
from lorarl_operator.decide.parse import QUEUE_LABEL
from lorarl_operator.decide.settings import Settings
from lorarl_operator.manifests.checkpoint_folder import require_lasting_folder, require_seen_folder
from lorarl_operator.manifests.config import CONFIG_FOLDER, CONFIG_KEY
from lorarl_operator.manifests.digests import passed_digest, pods_digest
from lorarl_operator.manifests.placement import NO_NODES, Avoided, avoid, head_node
from lorarl_operator.manifests.pods import (
    NO_GPUS,
    SCRATCH_FOLDER,
    engine_template,
    environment_template,
    head_template,
    image_of,
    pod_security_context,
    pull_secrets,
    scratch_volume,
    security_context,
    worker_template,
)

RAY_VERSION = "2.60.0"
"""Ray's version in our trainer image. KubeRay chooses the pods' probes by it."""
OUT_FOLDER = f"{SCRATCH_FOLDER}/lorarl-out"
"""Output folder of the run. The image's working directory may be read-only."""
ENTRYPOINT = f"lorarl run {CONFIG_FOLDER}/{CONFIG_KEY} --in-cluster --out {OUT_FOLDER}"
"""Command in the head's container, with its volumes and its environment."""
ENGINES = "engines"
"""KubeRay's name of the group of pods with separate engines. Kueue counts its quota by it too."""
ENVIRONMENTS = "environments"
"""The same of the pods in which the job's environment plays."""
RESTARTS_IN_PLACE = 8
"""How often KubeRay starts a RayJob of a queue again: see `in_place.py`. It does so also while no operator works."""


def ray_job(
    job: Job,
    spec: LoRARLJobSpec,
    attempt: int,
    settings: Settings,
    *,
    queued: bool | None = None,
    avoided: Avoided = NO_NODES,
    nodes: int = 0,
) -> dict[str, Any]:
    """The RayJob of attempt `attempt`. Attempts count from 1.

    `queued`: Whether Kueue manages it. By default it does if the job has Kueue's label. `nodes`: For how many it asks,
    by default for all.

    Raises:
        ManifestError: `cluster.podTemplateOverrides` cannot be merged, the checkpoints would be deleted with the
            pods, or nothing can keep a required topology.
    """
    about = metadata(job, ray_job_name(job.name, attempt), attempt)
    about["labels"] = dict(job.passed_labels) | about["labels"]
    about["annotations"] = dict(job.passed_annotations) | {
        ANNOTATION_GENERATION: str(job.generation),
        ANNOTATION_PODS: pods_digest(spec),
        ANNOTATION_PASSED: passed_digest(job),
        **({ANNOTATION_TEMPLATE: job.template} if job.template else {}),
    }
    workers = nodes or spec.cluster.nodes
    queued = QUEUE_LABEL in dict(job.passed_labels) if queued is None else queued
    head_pod = head_template(job, spec, attempt, settings)
    worker_pod = worker_template(job, spec, attempt, settings, queued=queued)
    require_lasting_folder(spec, head_pod, worker_pod)
    require_seen_folder(spec, worker_pod)
    if workers != spec.cluster.nodes:
        head_pod["spec"]["containers"][0]["env"].append({"name": "LORARL_NODES", "value": str(workers)})
    # A worker takes one CPU in Ray's count, however many its pod has.
    group = _group(WORKER_GROUP, workers, spec.workers_per_node, spec.cluster.gpus_per_node, worker_pod)
    group["minReplicas"] = min(spec.cluster.fewest_nodes, workers)
    groups = [
        group,
        *_engines(job, spec, attempt, settings, queued=queued),
        *_environments(job, spec, attempt, settings),
    ]
    for template in (head_pod, *(group["template"] for group in groups)):
        avoid(template, avoided)
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": about,
        "spec": {
            "submissionMode": spec.cluster.submission_mode,
            "entrypoint": ENTRYPOINT,
            "backoffLimit": RESTARTS_IN_PLACE if queued else 0,
            **_submitter(job, spec, settings),
            **_clean_up(settings, queued=queued),
            "rayClusterSpec": {
                "rayVersion": RAY_VERSION,
                # Anyone who reaches Ray's ports could run programs in the pods. KubeRay's token restricts that to its
                # readers.
                "authOptions": {"mode": "token"},
                "headGroupSpec": {
                    # Without CPUs no worker is placed on the head.
                    "rayStartParams": {"num-cpus": "0", "num-gpus": "0", "dashboard-host": "0.0.0.0"},
                    "template": head_pod,
                },
                "workerGroupSpecs": groups,
            },
        },
    }


def _engines(job: Job, spec: LoRARLJobSpec, attempt: int, settings: Settings, *, queued: bool) -> list[dict[str, Any]]:
    """The group of pods with separate engines, if the job has any."""
    engines = spec.separate_engines
    if engines is None:
        return []
    template = engine_template(job, spec, attempt, settings, queued=queued)
    group = _group(ENGINES, engines.count, 0, engines.tensor_parallel_size if spec.on_gpu else 0, template)
    return [_only_for(ENGINE_RESOURCE, group)]


def _environments(job: Job, spec: LoRARLJobSpec, attempt: int, settings: Settings) -> list[dict[str, Any]]:
    """The group of pods in which the job's environment plays, if they are asked for."""
    if (own := spec.cluster.environments) is None:
        return []
    group = _group(ENVIRONMENTS, own.replicas, 0, 0, environment_template(job, spec, attempt, settings))
    return [_only_for(ENVIRONMENT_RESOURCE, group)]


def _only_for(resource: str, group: dict[str, Any]) -> dict[str, Any]:
    """Let only what asks for Ray's own resource into the pods of a group, which has no CPUs for workers."""
    group["rayStartParams"]["resources"] = f"'{json.dumps({resource: 1})}'"  # a shell reads it
    return group


def _group(name: str, pods: int, cpus: int, gpus: int, template: dict[str, Any]) -> dict[str, Any]:
    return {
        "groupName": name,
        "replicas": pods,
        "minReplicas": pods,
        "maxReplicas": pods,
        "rayStartParams": {"num-cpus": str(cpus), "num-gpus": str(gpus)},
        "template": template,
    }


def _clean_up(settings: Settings, *, queued: bool) -> dict[str, Any]:
    """What KubeRay deletes when the attempt has ended: the workers at once, because others want their GPUs.

    With a queue everything is deleted, because the queue gives away the whole quota at the end. Kueue requires
    shutdownAfterJobFinishes, which excludes deletion rules. For a failure the rule uses the deployment status:
    jobStatus stays RUNNING if the head was lost or the submission failed. KubeRay's rules know no deployment status
    but Failed.
    """
    if queued:
        return {"shutdownAfterJobFinishes": True, "ttlSecondsAfterFinished": 0}
    rules = [
        {"policy": policy, "condition": {**ended, "ttlSeconds": seconds}}
        for ended in ({"jobStatus": "SUCCEEDED"}, {"jobDeploymentStatus": "Failed"})
        for policy, seconds in (("DeleteWorkers", 0), ("DeleteCluster", settings.keep_head_seconds))
    ]
    return {"deletionStrategy": {"deletionRules": rules}}


def _submitter(job: Job, spec: LoRARLJobSpec, settings: Settings) -> dict[str, Any]:
    """The submitter's pod in K8sJobMode.

    In SidecarMode KubeRay creates the container itself and accepts no template.
    """
    if spec.cluster.submission_mode != "K8sJobMode":
        return {}
    scratch, scratch_mount = scratch_volume()
    container = {
        "name": "submitter",
        **image_of(spec, settings),
        "env": [NO_GPUS, {"name": "HOME", "value": SCRATCH_FOLDER}],
        "resources": {"requests": {"cpu": "500m", "memory": "200Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": security_context(),
        "volumeMounts": [scratch_mount],
    }
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": pod_security_context(),
        "enableServiceLinks": False,
        **pull_secrets(spec),
        **head_node(spec),
        "containers": [container],
        "volumes": [scratch],
    }
    # The job's NetworkPolicy lets it reach the head. Without more labels the operator does not take it for a Ray pod.
    return {"submitterPodTemplate": {"metadata": {"labels": {LABEL_JOB_UID: job.uid}}, "spec": pod}}
