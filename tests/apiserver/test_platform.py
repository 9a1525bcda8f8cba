"""The platform of the operator's tests behaves like a cluster."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.cluster import pods
from support.cluster.client import Api, ApiError, Object
from support.cluster.kwok import CANNOT_BE_PULLED, ENDS_AT_ONCE, HELD, lose_node, mend_node
from support.cluster.platform import Platform
from support.cluster.processes import until
from support.cluster.rayjobs import rayjob


def test_a_rayjob_runs_and_succeeds_and_its_workers_are_deleted(kuberay_platform: Platform) -> None:
    p = kuberay_platform
    namespace = p.namespace()
    p.api.create(rayjob(namespace, "good", workers=2))
    job = p.wait_running(namespace, "good")
    assert job["status"]["dashboardURL"].endswith(f".{namespace}.svc.cluster.local:8265")
    (head,) = p.pods(namespace, "good", pods.HEAD)
    assert [c["name"] for c in head["spec"]["containers"]] == ["ray-head", pods.SUBMITTER]
    workers = p.pods(namespace, "good", pods.WORKER)
    assert len(workers) == 2
    assert {pod["status"]["phase"] for pod in (head, *workers)} == {"Running"}
    assert {pod["spec"]["nodeName"] for pod in (head, *workers)} <= {"node-0", "node-1"}

    p.finish(namespace, "good", "SUCCEEDED")
    done = p.api.wait("RayJob", "good", namespace, lambda o: o["status"]["jobDeploymentStatus"] == "Complete")
    assert done["status"]["jobStatus"] == "SUCCEEDED"
    until(10, "the workers are gone", lambda: not p.pods(namespace, "good", pods.WORKER))
    assert len(p.pods(namespace, "good", pods.HEAD)) == 1


def test_a_failed_job_fails_with_rays_message(kuberay_platform: Platform) -> None:
    p = kuberay_platform
    namespace = p.namespace()
    p.api.create(rayjob(namespace, "bad"))
    p.wait_running(namespace, "bad")
    # KubeRay must ask before the submitter ends, or it knows only that the submitter ended.
    p.dashboard.set(namespace, "bad", "FAILED", "CUDA out of memory")
    p.api.wait("RayJob", "bad", namespace, lambda o: o["status"]["jobStatus"] == "FAILED")
    p.finish(namespace, "bad", "FAILED", "CUDA out of memory")
    failed = p.api.wait("RayJob", "bad", namespace, lambda o: o["status"]["jobDeploymentStatus"] == "Failed")
    assert failed["status"]["reason"] == "AppFailed"
    assert failed["status"]["message"] == "CUDA out of memory"


def test_a_deleted_rayjob_is_stopped_and_all_its_objects_are_deleted(kuberay_platform: Platform) -> None:
    p = kuberay_platform
    namespace = p.namespace()
    p.api.create(rayjob(namespace, "gone"))
    cluster_name = p.wait_running(namespace, "gone")["status"]["rayClusterName"]
    p.api.delete("RayJob", "gone", namespace)
    p.api.wait_gone("RayJob", "gone", namespace)
    # KubeRay asks again if a conflict keeps it from removing its finalizer: once or more.
    assert (namespace, "gone") in p.dashboard.stops
    p.api.wait_gone("RayCluster", cluster_name, namespace)
    until(10, "the pods are gone", lambda: not p.api.list("Pod", namespace))


def test_owned_objects_are_deleted_with_their_owner(kuberay_platform: Platform) -> None:
    p = kuberay_platform
    namespace = p.namespace()
    owner = p.api.create(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner", "namespace": namespace}}
    )
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    owned = {"name": "owned", "namespace": namespace, "ownerReferences": [reference]}
    p.api.create({"apiVersion": "v1", "kind": "Secret", "metadata": owned})
    p.api.delete("ConfigMap", "owner", namespace)
    p.api.wait_gone("Secret", "owned", namespace)


def test_permissions_are_checked_and_requests_are_audited(kuberay_platform: Platform) -> None:
    p = kuberay_platform
    namespace = p.namespace()
    p.api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "reader", "namespace": namespace}})
    reader = p.cluster.api_as(p.cluster.service_account_token(namespace, "reader"))
    with pytest.raises(ApiError, match='cannot list resource "pods"'):
        reader.list("Pod", namespace)
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "reader", "namespace": namespace}}
    p.api.create({**role, "kind": "Role", "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]})
    subject = {"kind": "ServiceAccount", "name": "reader", "namespace": namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}
    p.api.create({**role, "kind": "RoleBinding", "subjects": [subject], "roleRef": reference})

    def may_list() -> bool:
        try:
            return reader.list("Pod", namespace) == []
        except ApiError:
            return False

    until(10, "the role is in force", may_list)
    events = p.cluster.audited(f"system:serviceaccount:{namespace}:reader")
    assert {(event["verb"], event["objectRef"]["resource"]) for event in events} == {("list", "pods")}
    assert {event["responseStatus"]["code"] for event in events} == {200, 403}


def test_a_namespace_with_a_running_rayjob_can_be_deleted(kuberay_platform: Platform) -> None:
    p = kuberay_platform
    namespace = p.namespace()
    p.api.create(rayjob(namespace, "inside"))
    p.wait_running(namespace, "inside")
    p.api.delete("Namespace", namespace)
    p.api.wait_gone("Namespace", namespace, seconds=20)


def test_a_job_that_no_node_has_room_for_stays_pending(kuberay_platform: Platform) -> None:
    p = kuberay_platform
    namespace = p.namespace()
    p.api.create(rayjob(namespace, "wide", gpus=9))

    def reason() -> str | None:
        for pod in p.pods(namespace, "wide", pods.WORKER):
            for condition in pod["status"].get("conditions", []):
                if condition["type"] == "PodScheduled" and condition["status"] == "False":
                    return f"{condition['reason']}: {condition['message']}"
        return None

    assert "Unschedulable: 0/2 nodes are available: 2 Insufficient nvidia.com/gpu" in until(
        10, "the scheduler says why", reason
    )


def test_an_image_that_cannot_be_pulled_is_reported_like_by_a_kubelet(kuberay_platform: Platform) -> None:
    p = kuberay_platform
    namespace = p.namespace()
    p.api.create(rayjob(namespace, "no-image", image=CANNOT_BE_PULLED))

    def waiting() -> dict[str, str] | None:
        heads = p.pods(namespace, "no-image", pods.HEAD)
        statuses = heads[0]["status"].get("containerStatuses", []) if heads else []
        return statuses[0]["state"]["waiting"] if statuses else None

    assert until(10, "the head cannot be started", waiting)["reason"] == "ImagePullBackOff"


def disruptions(p: Platform, namespace: str, pod: Object, disturb: Callable[[], object]) -> list[str]:
    """Disturb a pod, and return the disruption reasons in its last state. Only the watch has them."""
    events = p.api.watch("Pod", namespace, seconds=60)
    next(events)  # The watch has started.
    disturb()
    gone = next(
        seen for event, seen in events if event == "DELETED" and seen["metadata"]["uid"] == pod["metadata"]["uid"]
    )
    return [c["reason"] for c in gone["status"]["conditions"] if c["type"] == "DisruptionTarget"]


def test_a_lost_node_with_the_head_fails_the_rayjob(kuberay_platform: Platform) -> None:
    p = kuberay_platform
    namespace = p.namespace()
    p.api.create(rayjob(namespace, "headless"))
    p.wait_running(namespace, "headless")
    (head,) = p.pods(namespace, "headless", pods.HEAD)
    node = head["spec"]["nodeName"]
    try:
        assert disruptions(p, namespace, head, lambda: lose_node(p.cluster, node)) == ["DeletionByTaintManager"]
    finally:
        mend_node(p.cluster, node)
    failed = p.api.wait("RayJob", "headless", namespace, lambda o: o["status"]["jobDeploymentStatus"] == "Failed")
    assert failed["status"]["message"] == "Ray head pod not found."
    assert failed["status"]["jobStatus"] == "RUNNING"


def test_without_a_head_kuberay_never_deletes_the_workers(kuberay_platform: Platform) -> None:
    """The operator must do it: without a head KubeRay ignores its rule to delete the workers of a failed RayJob."""
    p = kuberay_platform
    namespace = p.namespace()
    p.api.create(rayjob(namespace, "left"))
    p.wait_running(namespace, "left")
    (head,) = p.pods(namespace, "left", pods.HEAD)
    p.api.delete("Pod", head["metadata"]["name"], namespace)
    p.api.wait("RayJob", "left", namespace, lambda o: o["status"]["jobDeploymentStatus"] == "Failed")
    cluster_name = p.api.list("RayCluster", namespace)[0]["metadata"]["name"]
    p.api.wait("RayCluster", cluster_name, namespace, lambda o: o["spec"]["workerGroupSpecs"][0].get("suspend"))
    assert [pod["status"]["phase"] for pod in p.pods(namespace, "left", pods.WORKER)] == ["Running"]


@pytest.mark.parametrize(
    ("disturb", "sign"),
    [(pods.evict, "EvictionByEvictionAPI"), (pods.fail_by_kubelet, "TerminationByKubelet")],
    ids=["drained", "by kubelet"],
)
def test_a_lost_worker_is_created_again_and_the_rayjob_continues(
    kuberay_platform: Platform, disturb: Callable[[Api, Object], object], sign: str
) -> None:
    p = kuberay_platform
    namespace = p.namespace()
    p.api.create(rayjob(namespace, "worker-lost"))
    job_id = p.wait_running(namespace, "worker-lost")["status"]["jobId"]
    (worker,) = p.pods(namespace, "worker-lost", pods.WORKER)
    assert disruptions(p, namespace, worker, lambda: disturb(p.api, worker)) == [sign]

    def new_worker_runs() -> bool:
        return [pod["status"]["phase"] for pod in p.pods(namespace, "worker-lost", pods.WORKER)] == ["Running"]

    until(10, "a new worker runs", new_worker_runs)
    assert p.wait_running(namespace, "worker-lost")["status"]["jobId"] == job_id


def test_kuberay_recreates_forever_a_head_that_exits_at_once(kuberay_platform: Platform) -> None:
    p = kuberay_platform
    namespace = p.namespace()
    p.api.create(rayjob(namespace, "crash", image=ENDS_AT_ONCE))
    seen: set[str] = set()

    def three_heads() -> bool:
        seen.update(pod["metadata"]["uid"] for pod in p.pods(namespace, "crash", pods.HEAD))
        return len(seen) >= 3

    until(15, "the head was created again twice", three_heads)
    job = p.api.get("RayJob", "crash", namespace)
    assert job is not None
    assert job["status"]["jobDeploymentStatus"] == "Initializing"
    p.api.delete("RayJob", "crash", namespace)


def test_a_held_pod_reports_what_the_test_sets(kuberay_platform: Platform) -> None:
    p = kuberay_platform
    namespace = p.namespace()
    p.api.create(rayjob(namespace, "held", image=HELD))
    heads = until(
        10,
        "the head is scheduled",
        lambda: [h for h in p.pods(namespace, "held", pods.HEAD) if h["spec"].get("nodeName")],
    )
    pods.waits(p.api, heads[0], reason="CreateContainerConfigError", message='secret "keys" not found')
    pods.post_event(
        p.api, heads[0], "FailedMount", 'MountVolume.SetUp failed for volume "keys": secret "keys" not found'
    )
    (head,) = p.pods(namespace, "held", pods.HEAD)
    assert head["status"]["phase"] == "Pending"
    assert head["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "CreateContainerConfigError"
    events = p.api.list("Event", namespace, fields=f"involvedObject.name={head['metadata']['name']}")
    assert "FailedMount" in {event["reason"] for event in events}
