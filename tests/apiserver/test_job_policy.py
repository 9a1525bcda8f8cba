"""What the chart's policy for LoRARLJobs refuses, on an API server."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from support.cluster.client import ApiError, Object
from support.cluster.control_plane import Cluster
from support.cluster.lorarljobs import lorarljob, template
from support.cluster.processes import until
from support.helm import rendered

TENANT, ADMIN = "policy-tenant", "policy-admin"
IMAGES = ["registry.example.com/ml/"]
TRAIN = {"uri": "s3://a/train.jsonl", "promptField": "prompt", "answerField": "answer"}
GRPO = {"algorithm": {"type": "grpo"}}
EXACT = {**GRPO, "reward": {"type": "exact"}}
VALUES = {
    "jobPolicy.enabled": True,
    "jobPolicy.namespaceSelector": {"matchLabels": {"tenants": "yes"}},
    "jobPolicy.images": IMAGES,
    "jobPolicy.serviceAccounts": ["trainer"],
    "jobPolicy.secrets": ["s3-keys"],
    "jobPolicy.cloudRoles": ["arn:aws:iam::1:role/training"],
    "jobPolicy.priorityClasses": ["batch"],
    "jobPolicy.tolerations": ["nvidia.com/gpu"],
}
PRIORITY = "ray.io/priority-class-name"
OF_TEMPLATES = frozenset({"cluster", "tracking", "labels", "annotations"})
"""The parts of a job that a template may have."""


OTHERS = {"uri": "s3://a/b", "credentialsSecret": "others"}
REWARD = {"function": "r:score", "source": OTHERS}


def publishes(secret: str) -> Object:
    """A job whose adapter AIBrix reads with this Secret."""
    target = {"podSelector": {"app": "vllm"}, "credentialsSecret": secret}
    return {
        "data": {"train": TRAIN, "eval": TRAIN},
        "checkpoint": {"uri": "s3://a", "keepBest": {}, "keepAll": True},
        "publish": [{"name": "sums", "maximum": 1.2, "aibrix": target}],
    }


JUDGE = {"server": {"url": "https://judge/v1", "model": "judge", "credentialsSecret": "others"}}
NAMING_SECRETS: list[Object] = [
    {"model": OTHERS},
    {"checkpoint": OTHERS},
    {"data": {"train": TRAIN, "credentialsSecret": "others"}},
    {
        **GRPO,
        "reward": {"type": "exact"},
        "rollout": {"servers": ["http://vllm:8000"], "serverFolder": "/mnt/adapters", "credentialsSecret": "others"},
        "cluster": {"podTemplateOverrides": {"head": {"spec": {}}, "worker": {"spec": {}}}},
    },
    {"tracking": {"wandb": {"project": "p", "credentialsSecret": "others"}}},
    {"tracking": {"mlflow": {"trackingUri": "https://a", "experiment": "e", "credentialsSecret": "others"}}},
    {**GRPO, "reward": REWARD},
    {**GRPO, "reward": JUDGE},
    {"algorithm": {"type": "distillation", "distillation": JUDGE}},
    publishes("others"),
    {**GRPO, "environment": {"function": "e:Episode", "source": OTHERS}},
    {**GRPO, "rewards": [{"name": "a", **REWARD}, {"name": "b", "type": "exact"}]},
    {
        **GRPO,
        "reward": {"type": "exact"},
        "data": {"train": TRAIN, "evals": [{"name": "e", **TRAIN, "reward": REWARD}]},
    },
]


def worker(**pod: object) -> Object:
    """A job's `cluster` with overrides of its workers."""
    return {"cluster": {"podTemplateOverrides": {"worker": {"spec": pod}}}}


def engine(**pod: object) -> Object:
    """A job with a separate engine and overrides of its pods."""
    return {
        **EXACT,
        "rollout": {"separateEngines": {}},
        "cluster": {"podTemplateOverrides": {"engine": {"spec": pod}}},
    }


def environment(pod: Object | None = None, **pods: object) -> Object:
    """A job whose environment plays in pods, with overrides of these."""
    overrides = {"podTemplateOverrides": {"environment": {"spec": pod}}} if pod else {}
    played: Object = {"environment": {"function": "e:Episode"}}
    return {**GRPO, **played, "cluster": {"environments": pods, **overrides}}


def ray(**container: object) -> Object:
    """The same for the workers' container."""
    return worker(containers=[{"name": "ray-worker", **container}])


def contexts(context: Object | None) -> list[Object]:
    """Jobs with a security context of the head's pod, the workers' pods, their container, and an init container."""
    ours: Object = {"securityContext": context}
    return [
        {"cluster": {"podTemplateOverrides": {"head": {"spec": ours}}}},
        worker(**ours),
        ray(**ours),
        worker(initContainers=[{"name": "fetch", **ours}]),
    ]


@pytest.fixture(scope="module")
def tenancy(cluster: Cluster) -> Iterator[Cluster]:
    """Two namespaces, and the policy for one of them, in force."""
    for name, labels in ((TENANT, {"tenants": "yes"}), (ADMIN, {})):
        cluster.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    cluster.api.create(lorarljob(TENANT, "older", cluster={"image": "docker.io/any"}))
    policies = [each for each in rendered(VALUES) if each["metadata"]["name"].endswith("-jobs")]
    for one in policies:
        cluster.must("apply", "-f", "-", stdin=json.dumps(one))
    until(20, "the policy is in force", lambda: refusal(cluster, ray(image="docker.io/any")))
    yield cluster
    for one in policies:
        cluster.must("delete", one["kind"], one["metadata"]["name"])


def annotated(key: str, value: str) -> list[Object]:
    """Jobs whose pods get an annotation: by the job, or by the overrides of one of its pods."""
    about: Object = {"metadata": {"annotations": {key: value}}}
    pods = ({"cluster": {"podTemplateOverrides": {role: about}}} for role in ("head", "worker"))
    return [{"annotations": {key: value}}, *pods]


OTHER_VOLUMES = ("azureFile", "flexVolume", "cephfs", "iscsi", "nfs", "glusterfs", "gitRepo", "rbd", "aKindToCome")
REFUSED: list[tuple[Object, str]] = [
    (
        {"cluster": {"image": "docker.io/any"}},
        "spec.cluster.image, environments.image and the images of",
    ),
    (ray(image="docker.io/any"), "registry.example.com/ml/"),
    (worker(initContainers=[{"name": "fetch", "image": "docker.io/any"}]), "registry.example.com/ml/"),
    ({"cluster": {"serviceAccountName": "admin"}}, "spec.cluster.serviceAccountName must be one of trainer"),
    (worker(serviceAccountName="trainer"), "spec.cluster.serviceAccountName"),
    (worker(hostNetwork=True), "the node's network, processes or folders"),
    (worker(volumes=[{"name": "all", "hostPath": {"path": "/"}}]), "the node's network, processes or folders"),
    (ray(ports=[{"containerPort": 80, "hostPort": 80}]), "the node's network, processes or folders"),
    (engine(hostNetwork=True), "the node's network, processes or folders"),
    (engine(securityContext={"runAsUser": 0}), "as root"),
    (environment(image="docker.io/any"), "spec.cluster.image, environments.image"),
    (environment(tolerations=[{"operator": "Exists"}]), "one of the keys nvidia.com/gpu"),
    (environment({"hostPID": True}), "the node's network, processes or folders"),
    (environment({"containers": [{"name": "ray-environment", "image": "docker.io/any"}]}), "registry.example.com/ml/"),
    (worker(nodeName="node-1"), "may not name a node"),
    (worker(resourceClaims=[{"name": "gpu", "resourceClaimName": "others"}]), "existing ResourceClaim"),
    *((worker(volumes=[{"name": "v", kind: {}}]), "may only use volumes of the kinds") for kind in OTHER_VOLUMES),
    (worker(volumes=[{"name": "v", "image": {"reference": "docker.io/any"}}]), "registry.example.com/ml/"),
    ({"cluster": {"imagePullSecrets": ["others"]}}, "spec.cluster.imagePullSecrets must be among s3-keys"),
    (worker(imagePullSecrets=[{"name": "s3-keys"}]), "podTemplateOverrides may have none"),
    ({"cluster": {"serviceAccountAnnotations": {"eks.amazonaws.com/role-arn": "arn:x"}}}, "jobPolicy.cloudRoles"),
    ({"cluster": {"priorityClassName": "system-cluster-critical"}}, "one of batch"),
    (worker(priorityClassName="system-cluster-critical"), "one of batch"),
    ({"labels": {PRIORITY: "system-cluster-critical"}}, "one of batch"),
    ({"labels": {"kueue.x-k8s.io/priority-class": "urgent"}}, "one of batch"),
    *((spec, "devices or other rights") for spec in annotated("cdi.k8s.io/gpus", "nvidia.com/gpu=all")),
    *((spec, "devices or other rights") for spec in annotated("io.kubernetes.cri-o.Devices", "/dev/sda")),
    *((spec, "an injected container") for spec in annotated("sidecar.istio.io/proxyImage", "docker.io/any")),
    *((spec, "one of the roles [arn:aws") for spec in annotated("iam.amazonaws.com/role", "admin")),
    ({"labels": {"aadpodidbinding": "admin"}}, "one of the roles [arn:aws"),
    ({"cluster": {"tolerations": [{"operator": "Exists"}]}}, "one of the keys nvidia.com/gpu"),
    ({"cluster": {"head": {"tolerations": [{"key": "control-plane", "operator": "Exists"}]}}}, "one of the keys"),
    (worker(tolerations=[{"operator": "Exists"}]), "one of the keys nvidia.com/gpu"),
    (ray(securityContext={"privileged": True}), "privileges or capabilities"),
    (ray(securityContext={"allowPrivilegeEscalation": True}), "privileges or capabilities"),
    (ray(securityContext={"capabilities": {"add": ["SYS_PTRACE"]}}), "privileges or capabilities"),
    (ray(securityContext={"capabilities": {"drop": []}}), "privileges or capabilities"),
    (ray(securityContext={"capabilities": {"drop": ["NET_RAW"]}}), "privileges or capabilities"),
    *((spec, "as root") for spec in contexts({"runAsNonRoot": False})),
    *((spec, "as root") for spec in contexts({"runAsUser": 0})),
    *((spec, "with null") for spec in contexts(None)),
    (worker(securityContext={"runAsNonRoot": None}), "with null"),
    (ray(securityContext={"allowPrivilegeEscalation": None}), "with null"),
    (ray(securityContext={"capabilities": None}), "with null"),
    (ray(securityContext={"capabilities": {"drop": None}}), "with null"),
    (
        worker(
            securityContext={"runAsNonRoot": False, "runAsUser": 0},
            containers=[
                {
                    "name": "ray-worker",
                    "securityContext": {"readOnlyRootFilesystem": False, "capabilities": {"drop": []}},
                }
            ],
        ),
        "privileges or capabilities",
    ),
    *((spec, "credentialsSecret must be one of s3-keys") for spec in NAMING_SECRETS),
    (worker(volumes=[{"name": "all", "secret": {"secretName": "others"}}]), "may not use Secrets"),
    (ray(envFrom=[{"secretRef": {"name": "others"}}]), "may not use Secrets"),
    (ray(env=[{"name": "K", "valueFrom": {"secretKeyRef": {"name": "o", "key": "k"}}}]), "may not use Secrets"),
]


@pytest.mark.parametrize(("spec", "told"), REFUSED)
def test_what_a_tenant_may_not_ask_for(tenancy: Cluster, spec: Object, told: str) -> None:
    assert told in refusal(tenancy, spec)
    assert refusal(tenancy, spec, ADMIN) == "", "the namespace has no such label"


@pytest.mark.parametrize(("spec", "told"), [case for case in REFUSED if case[0].keys() <= OF_TEMPLATES])
def test_a_template_may_not_ask_for_more_than_a_job(tenancy: Cluster, spec: Object, told: str) -> None:
    with pytest.raises(ApiError, match="denied request") as refused:
        tenancy.api.create(template(TENANT, "way-around", **spec))
    assert told in str(refused.value)
    tenancy.api.create(template(ADMIN, "way-around", **spec))
    tenancy.api.delete("LoRARLJobTemplate", "way-around", ADMIN)


def test_a_template_may_have_what_a_job_may(tenancy: Cluster) -> None:
    tenancy.api.create(template(TENANT, "team", labels={"a": "b"}, cluster={"image": f"{IMAGES[0]}trainer:1"}))
    with pytest.raises(ApiError, match=r"jobPolicy\.images"):
        tenancy.api.patch("LoRARLJobTemplate", "team", {"spec": {"cluster": {"image": "docker.io/any"}}}, TENANT)
    tenancy.api.delete("LoRARLJobTemplate", "team", TENANT)


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"cluster": {"image": "registry.example.com/ml/trainer:1", "serviceAccountName": "trainer"}},
        {"labels": {PRIORITY: "batch", "kueue.x-k8s.io/queue-name": "research"}},
        {"labels": {"kueue.x-k8s.io/priority-class": "batch"}},
        *annotated("iam.amazonaws.com/role", "arn:aws:iam::1:role/training"),
        *annotated("prometheus.io/scrape", "true"),
        {"checkpoint": {"uri": "s3://a", "credentialsSecret": "s3-keys"}},
        publishes("s3-keys"),
        worker(volumes=[{"name": "cache", "persistentVolumeClaim": {"claimName": "cache"}}]),
        ray(env=[{"name": "K", "value": "v"}], securityContext={"readOnlyRootFilesystem": False}),
        worker(securityContext={"fsGroup": 10001}),
        engine(nodeSelector={"example.com/gpu": "l40s"}),
        worker(securityContext={"fsGroup": None, "fsGroupChangePolicy": None, "runAsUser": 1000680000}),
        ray(
            securityContext={"capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True, "allowPrivilegeEscalation": False}
        ),
        worker(initContainers=[{"name": "fetch", "image": f"{IMAGES[0]}fetch:1"}]),
        worker(volumes=[{"name": "v", "image": {"reference": f"{IMAGES[0]}model:1", "pullPolicy": "Always"}}]),
        worker(volumes=[{"name": "v", "emptyDir": {}}, {"name": "w", "ephemeral": {}}, {"name": "c", "configMap": {}}]),
        {
            "cluster": {
                "imagePullSecrets": ["s3-keys"],
                "serviceAccountAnnotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/training"},
                "priorityClassName": "batch",
                "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            }
        },
    ],
)
def test_what_a_tenant_may_ask_for(tenancy: Cluster, spec: Object) -> None:
    assert refusal(tenancy, spec) == ""


def test_a_label_that_comes_later_is_checked_too(tenancy: Cluster) -> None:
    tenancy.api.create(lorarljob(TENANT, "labelled"))
    tenancy.api.patch("LoRARLJob", "labelled", {"metadata": {"labels": {PRIORITY: "batch", "team": "a"}}}, TENANT)
    with pytest.raises(ApiError, match=r"jobPolicy\.priorityClasses"):
        tenancy.api.patch("LoRARLJob", "labelled", {"metadata": {"labels": {PRIORITY: "high"}}}, TENANT)
    with pytest.raises(ApiError, match="devices or other rights"):
        gpus = {"annotations": {"cdi.k8s.io/gpus": "nvidia.com/gpu=all"}}
        tenancy.api.patch("LoRARLJob", "labelled", {"metadata": gpus}, TENANT)
    tenancy.api.delete("LoRARLJob", "labelled", TENANT)


def test_a_job_that_was_there_before_can_be_kept_suspended_and_deleted(tenancy: Cluster) -> None:
    finalizers = {"metadata": {"finalizers": ["lorarl.io/cleanup"]}}
    tenancy.api.patch("LoRARLJob", "older", finalizers, TENANT)
    for change in ({"suspend": True, "backoffLimit": 5}, {"backoffLimit": 5}):
        with pytest.raises(ApiError, match=r"jobPolicy\.images"):
            tenancy.api.patch("LoRARLJob", "older", {"spec": change}, TENANT)
    tenancy.api.patch("LoRARLJob", "older", {"spec": {"suspend": True}}, TENANT)
    with pytest.raises(ApiError, match=r"jobPolicy\.images"):
        tenancy.api.patch("LoRARLJob", "older", {"spec": {"suspend": False}}, TENANT)
    tenancy.api.delete("LoRARLJob", "older", TENANT)
    tenancy.api.patch("LoRARLJob", "older", {"metadata": {"finalizers": None}}, TENANT)
    tenancy.api.wait_gone("LoRARLJob", "older", TENANT, seconds=10)


def refusal(cluster: Cluster, spec: Object, namespace: str = TENANT) -> str:
    """Why the API server refuses a job; empty if it does not. The job is deleted again."""
    try:
        cluster.api.create(lorarljob(namespace, "asked", **spec))
    except ApiError as error:
        return str(error)
    cluster.api.delete("LoRARLJob", "asked", namespace)
    return ""
