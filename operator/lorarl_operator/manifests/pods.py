"""Pod templates of head, workers, separate engines and environments. They meet the restricted pod security standard."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from lorarl_api.ahead import PRELOAD, RAY_SETTINGS
from lorarl_api.faults import ManifestError
from lorarl_api.pod_merge import merge
from lorarl_api.pod_overrides import template_faults
from lorarl_api.pod_resources import (
    Resources,
    engine_resources,
    environment_resources,
    head_resources,
    worker_resources,
)
from lorarl_api.v1alpha1 import CLAIMS_FOLDER, REWARDS_FOLDER, LoRARLJobSpec, PodTemplateOverride, claim_of
from lorarl_operator.decide.models import LABEL_ROLE, Job
from lorarl_operator.decide.names import access_name, labels
from lorarl_operator.decide.settings import Settings
from lorarl_operator.manifests.access import service_account_of
from lorarl_operator.manifests.config import CONFIG_FOLDER, CONFIG_KEY, SECRETS_FOLDER
from lorarl_operator.manifests.environment import ca_volumes, variables
from lorarl_operator.manifests.gpu_claim import CLAIM, pod_claims
from lorarl_operator.manifests.placement import (
    ENGINE,
    ENVIRONMENT,
    HEAD,
    WORKER,
    Template,
    place_engines,
    place_environments,
    place_head,
    place_workers,
)

CACHE_FOLDER = "/var/cache/lorarl"
"""Base model, data and compiled kernels, once per node.

A job may mount a volume there that outlives its pods, or that pods share.
"""
SCRATCH_FOLDER = "/tmp"
"""The pod's own files: Ray's sessions and logs, the run's output, and the processes that the preStop hook waits for."""
TRAINERS_GROUP = 10001
"""Group of the user that the trainer's image runs as."""
AGENT_PORT = 52365
"""Default port of Ray's agent, which runs in each pod."""
_NOT_FOR_PODS = ("kueue.x-k8s.io/", "ray.io/")
"""Prefixes of a job's labels and annotations that only its RayJob gets. Kueue must not see its own twice."""
_NO_CONSOLIDATION = {
    "karpenter.sh/do-not-disrupt": "true",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
}
"""Annotations against autoscalers that move pods to use fewer nodes. Each loss interrupts the training."""
NO_GPUS = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
"""For a container without GPUs. Most CUDA images ask for all GPUs of the node, and NVIDIA's runtime would give them."""

_LOG_AS_MESSAGE = "FallbackToLogsOnError"
"""The kubelet reports the end of a failed container's log. It says more than an exit code, and outlives the pod."""


def head_template(job: Job, spec: LoRARLJobSpec, attempt: int, settings: Settings) -> Template:
    """The head's pod: Ray's control plane, and the process that runs the loop.

    Raises:
        ManifestError: `cluster.podTemplateOverrides.head` cannot be merged.
    """
    template = _template(job, spec, attempt, HEAD, settings, head_resources(spec), spec.cluster.head.disk)
    volumes, mounts = reward_volumes(spec)
    template["spec"]["volumes"] += volumes
    template["spec"]["containers"][0]["volumeMounts"] += mounts
    place_head(spec, template)
    return _overridden(job, attempt, template, HEAD, spec.cluster.pod_template_overrides.head)


def worker_template(job: Job, spec: LoRARLJobSpec, attempt: int, settings: Settings, *, queued: bool) -> Template:
    """A worker's pod: one on each node, with all GPUs that the job uses there.

    Raises:
        ManifestError: `cluster.podTemplateOverrides.worker` cannot be merged, or nothing can keep a required topology.
    """
    template = _on_devices(job, spec, attempt, WORKER, settings, worker_resources(spec, queued=queued))
    place_workers(job, spec, attempt, template, queued=queued)
    return _overridden(job, attempt, template, WORKER, spec.cluster.pod_template_overrides.worker)


def engine_template(job: Job, spec: LoRARLJobSpec, attempt: int, settings: Settings, *, queued: bool) -> Template:
    """The pod of a separate engine, with the GPUs of one.

    Raises:
        ManifestError: `cluster.podTemplateOverrides.engine` cannot be merged.
    """
    template = _on_devices(job, spec, attempt, ENGINE, settings, engine_resources(spec, queued=queued))
    place_engines(spec, template)
    return _overridden(job, attempt, template, ENGINE, spec.cluster.pod_template_overrides.engine)


def environment_template(job: Job, spec: LoRARLJobSpec, attempt: int, settings: Settings) -> Template:
    """The pod in which the job's environment plays. It runs code of a user's, and gets nothing else of the job.

    Raises:
        ManifestError: `cluster.podTemplateOverrides.environment` cannot be merged.
    """
    own = spec.cluster.environments
    assert own is not None, "the job has pods for its environment"
    template = _template(job, spec, attempt, ENVIRONMENT, settings, environment_resources(spec), own.disk)
    pod = template["spec"]
    del pod["serviceAccountName"]  # an identity of the cloud may come with the job's, by a webhook
    _beside_the_head(pod)
    pod["containers"][0] |= {"image": own.image} if own.image else {}
    place_environments(spec, template)
    return _overridden(job, attempt, template, ENVIRONMENT, spec.cluster.pod_template_overrides.environment)


def _on_devices(
    job: Job, spec: LoRARLJobSpec, attempt: int, role: str, settings: Settings, resources: Resources
) -> Template:
    """The common part of workers and engines."""
    cluster = spec.cluster
    claims = {"claims": [{"name": CLAIM}]} if cluster.gpu_claim else {}
    template = _template(job, spec, attempt, role, settings, resources | claims, cluster.disk_per_node)
    pod, container = template["spec"], template["spec"]["containers"][0]
    _beside_the_head(pod)
    pod["volumes"].append({"name": "shared-mem", "emptyDir": {"medium": "Memory", "sizeLimit": cluster.shared_memory}})
    container["volumeMounts"].append({"name": "shared-mem", "mountPath": "/dev/shm"})
    pod |= pod_claims(job, cluster)
    return template


def _beside_the_head(pod: dict[str, Any]) -> None:
    """Give a pod what those that are not the head need."""
    # Only the driver reports to the API server, so only the head needs a token. Clouds' identity webhooks mount their
    # own tokens.
    pod["automountServiceAccountToken"] = False
    # KubeRay makes a worker wait for its head in a shell. As the first process of a PID namespace, that shell would
    # ignore SIGTERM. A pod that is deleted while it waits, such as the replacement of a lost worker, would keep its
    # GPUs for its whole grace period and delay the next attempt.
    pod["shareProcessNamespace"] = True


def security_context() -> dict[str, Any]:
    """What the restricted standard requires of each container, and a read-only root file system."""
    return {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


def scratch_volume(limit: str | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The volume of a pod's own files, and its mount. `limit` is a quantity."""
    volume = {"name": "scratch", "emptyDir": {"sizeLimit": limit} if limit else {}}
    return volume, {"name": "scratch", "mountPath": SCRATCH_FOLDER}


def pod_security_context(spec: LoRARLJobSpec | None = None) -> dict[str, Any]:
    """What the restricted standard requires of each pod.

    If `spec` has checkpoints on a PersistentVolumeClaim, also what the trainer's user needs to write to a new volume.
    """
    context: dict[str, Any] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if spec is not None and spec.checkpoint_claim:
        context |= {"fsGroup": TRAINERS_GROUP, "fsGroupChangePolicy": "OnRootMismatch"}
    return context


def image_of(spec: LoRARLJobSpec, settings: Settings) -> dict[str, Any]:
    """A container's image and pull policy."""
    image: dict[str, Any] = {"image": spec.cluster.image or settings.trainer_image}
    return image | ({"imagePullPolicy": spec.cluster.image_pull_policy} if spec.cluster.image_pull_policy else {})


def pull_secrets(spec: LoRARLJobSpec) -> dict[str, Any]:
    """A pod's imagePullSecrets, if there are any."""
    names = spec.cluster.image_pull_secrets
    return {"imagePullSecrets": [{"name": name} for name in names]} if names else {}


def secret_volumes(names: Iterable[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Volumes and mounts of Secrets, each at /etc/lorarl/secrets/NAME. Only the kubelet reads their values."""
    return _mounted("secret", SECRETS_FOLDER, names, lambda name: {"secret": {"secretName": name}})


def reward_volumes(spec: LoRARLJobSpec) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Volumes and mounts of the ConfigMaps with reward functions, which the driver copies at its start."""
    names = [source.config_map for source in spec.reward_sources.values() if source.config_map]
    return _mounted("reward", REWARDS_FOLDER, names, lambda name: {"configMap": {"name": name}})


def claim_volumes(names: Iterable[str], writable: str | None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Volumes and mounts of PersistentVolumeClaims, each at /mnt/pvc/NAME. All but `writable` are read-only."""

    def source(name: str) -> dict[str, Any]:
        return {"persistentVolumeClaim": {"claimName": name} | ({} if name == writable else {"readOnly": True})}

    return _mounted("claim", CLAIMS_FOLDER, names, source, writable)


def _mounted(
    kind: str, folder: str, names: Iterable[str], source: Callable[[str], dict[str, Any]], writable: str | None = None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Volumes, and their mounts at FOLDER/NAME. Volumes are numbered: an object's name may be too long for a volume."""
    each = list(enumerate(sorted(set(names))))
    volumes = [{"name": f"{kind}-{number}", **source(name)} for number, name in each]
    mounts = [
        {"name": f"{kind}-{number}", "mountPath": f"{folder}/{name}"} | ({} if name == writable else {"readOnly": True})
        for number, name in each
    ]
    return volumes, mounts


def _template(
    job: Job,
    spec: LoRARLJobSpec,
    attempt: int,
    role: str,
    settings: Settings,
    resources: Resources,
    disk: str | None,
) -> Template:
    """The common part of all pods. `disk` limits each volume on the node's own disk."""
    cluster = spec.cluster
    secrets, secret_mounts = secret_volumes(_secrets(spec, role))
    claims, claim_mounts = claim_volumes(_claims(spec, role), spec.checkpoint_claim if role in (HEAD, WORKER) else None)
    cas, ca_mounts = ca_volumes(spec)
    scratch, scratch_mount = scratch_volume(disk)
    container = {
        "name": f"ray-{role}",
        **image_of(spec, settings),
        "env": [
            _pod_name(),
            *({"name": name, "value": value} for name, value in _env(spec, attempt, role, settings).items()),
        ],
        "resources": resources,
        "securityContext": security_context(),
        "terminationMessagePolicy": _LOG_AS_MESSAGE,
        "lifecycle": {"preStop": {"exec": {"command": ["lorarl", "drain"]}}},
        **_probes(),
        "volumeMounts": [
            {"name": "job", "mountPath": CONFIG_FOLDER, "readOnly": True},
            {"name": "cache", "mountPath": CACHE_FOLDER},
            scratch_mount,
            *secret_mounts,
            *claim_mounts,
            *ca_mounts,
        ],
    }
    pod = {
        "restartPolicy": "Never",
        "serviceAccountName": service_account_of(job, cluster),
        "securityContext": pod_security_context(spec),
        # A Service named `vllm` in the namespace would set VLLM_PORT=tcp://..., with which vLLM ends each job.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": cluster.termination_grace_period_seconds,
        **pull_secrets(spec),
        **({"priorityClassName": cluster.priority_class_name} if cluster.priority_class_name else {}),
        **({"schedulerName": cluster.scheduler_name} if cluster.scheduler_name else {}),
        "containers": [container],
        "volumes": [
            {"name": "job", "configMap": {"name": access_name(job.name)}},
            {"name": "cache", "emptyDir": {"sizeLimit": disk} if disk else {}},
            scratch,
            *secrets,
            *claims,
            *cas,
        ],
    }
    about: dict[str, Any] = {"labels": _for_pods(job.passed_labels) | _labels(job, attempt, role)}
    kept = {} if cluster.allow_consolidation else _NO_CONSOLIDATION
    if annotations := kept | _for_pods(job.passed_annotations):
        about["annotations"] = annotations
    return {"metadata": about, "spec": pod}


def _secrets(spec: LoRARLJobSpec, role: str) -> list[str]:
    """The Secrets that a pod reads. Those of data, trackers and servers are the driver's.

    Engines have no store, and environments none of all.
    """
    if role == HEAD:
        return list(spec.secrets.values())
    if role == ENVIRONMENT:
        return []
    store = spec.checkpoint.credentials_secret if role == WORKER else None
    return [name for name in (spec.model.credentials_secret, store) if name]


def _claims(spec: LoRARLJobSpec, role: str) -> list[str]:
    """The PersistentVolumeClaims that a pod mounts. Engines read the base model alone, and environments nothing."""
    if role in (HEAD, WORKER):
        return spec.claims
    model = claim_of(spec.model.uri) if role == ENGINE else None
    return [model] if model else []


def _probes() -> dict[str, Any]:
    """Probes that make the pod ready as soon as Ray's agent reports it.

    KubeRay's own probe starts after 10 s and then runs every 5 s. With HTTPMode and K8sJobMode, KubeRay submits the
    job when all pods are ready. These probes ask for the same endpoint, and they also give a container up after ten
    minutes.
    """

    def healthy(period: int, failures: int) -> dict[str, Any]:
        asked = {"httpGet": {"path": "/api/healthz", "port": AGENT_PORT}, "timeoutSeconds": 5}
        return {**asked, "periodSeconds": period, "failureThreshold": failures}

    return {"startupProbe": healthy(1, 600), "readinessProbe": healthy(5, 10)}


def _labels(job: Job, attempt: int, role: str) -> dict[str, str]:
    return labels(job, attempt) | {LABEL_ROLE: role}


def _for_pods(passed: tuple[tuple[str, str], ...]) -> dict[str, str]:
    return {key: value for key, value in passed if not key.startswith(_NOT_FOR_PODS)}


def _pod_name() -> dict[str, Any]:
    """By its pod's name a worker is in `status.workers`. The host's name is another one in the node's network."""
    return {"name": "LORARL_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}


def _env(spec: LoRARLJobSpec, attempt: int, role: str, settings: Settings) -> dict[str, str]:
    env = {
        "LORARL_ATTEMPT": str(attempt),
        **({"LORARL_CLUSTER": settings.cluster_uid} if settings.cluster_uid else {}),
        # Libraries keep files there that have no variable for it. The image's folder is read-only.
        "HOME": SCRATCH_FOLDER,
        "LORARL_RUN_DIR": f"{SCRATCH_FOLDER}/lorarl-run",
        "LORARL_SECRETS_DIR": SECRETS_FOLDER,
        "LORARL_CACHE": CACHE_FOLDER,
        "HF_HOME": f"{CACHE_FOLDER}/huggingface",
        "VLLM_CACHE_ROOT": f"{CACHE_FOLDER}/vllm",
        "TRITON_CACHE_DIR": f"{CACHE_FOLDER}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{CACHE_FOLDER}/inductor",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray's head reports that, too, once. Nothing listens there.
        "RAY_USAGE_STATS_REPORT_URL": "http://127.0.0.1:9",
        # Ray stops the driver of a deleted RayJob, by default with a kill after 3 s. The driver needs the time of a
        # checkpoint.
        "RAY_JOB_STOP_WAIT_TIME_S": str(spec.cluster.termination_grace_period_seconds),
        # At SIGTERM the trainer's processes have ended, because the preStop hook waits for them. Ray would wait
        # another 30 s.
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    }
    if role in (HEAD, WORKER):
        # The workers' processes import their libraries before a driver asks for them; the head's variable tells the
        # driver so.
        env[PRELOAD] = f"{CONFIG_FOLDER}/{CONFIG_KEY}"
    if role == WORKER:
        # By default, Ray starts no idle processes before there is a driver.
        env |= RAY_SETTINGS | {"RAY_enable_worker_prestart": "1"}
    if spec.on_gpu:
        env["NCCL_DEBUG"] = "WARN"
    if role == HEAD:
        # Ray's head notices a lost worker after 5 failed checks, by default 3 s apart. Each may take 10 s, so that a
        # busy machine does not count as lost.
        env["RAY_health_check_period_ms"] = "1000"
    if role == HEAD and spec.cluster.fewest_nodes < spec.cluster.nodes:
        env["LORARL_ELASTIC_WAIT_SECONDS"] = str(settings.elastic_wait_seconds)
        env["LORARL_ELASTIC_GROW_SECONDS"] = str(settings.elastic_grow_seconds)
    if role in (HEAD, ENVIRONMENT) or not spec.on_gpu:
        env[NO_GPUS["name"]] = NO_GPUS["value"]
    return env | variables(spec)


def _overridden(
    job: Job, attempt: int, template: Template, role: str, override: PodTemplateOverride | None
) -> Template:
    if override is None:
        return template
    path = f"spec.cluster.podTemplateOverrides.{role}"
    merged = merge(template, override.model_dump(exclude_none=True), path)
    if faults := list(template_faults(merged, path)):
        raise ManifestError(faults)
    # The operator finds the pods by these labels.
    merged["metadata"]["labels"] = {**merged["metadata"].get("labels", {}), **_labels(job, attempt, role)}
    for container in merged["spec"].get("initContainers", []):
        container.setdefault("terminationMessagePolicy", _LOG_AS_MESSAGE)
    return merged
