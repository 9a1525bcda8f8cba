"""Each stuck state: its reason, and a message with the problem and the fix."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lorarl_operator.decide import parse
from lorarl_operator.decide.decide import decide
from lorarl_operator.decide.decision import Want
from lorarl_operator.decide.models import Evidence, KubeEvent, RayCluster, Workload
from unit.operator.observed_world import SETTINGS, START, condition, observed, raw_job, raw_pod, raw_ray_job

UP = {"jobDeploymentStatus": "Initializing"}


def pending(role="worker", **parts):
    return raw_pod(role, phase="Pending", **parts)


def waiting(reason, message, container="ray-worker"):
    return [{"name": container, "state": {"waiting": {"reason": reason, "message": message}}}]


def event(kind, name, reason, message, age=5.0):
    return KubeEvent(kind, name, reason, message, START - timedelta(seconds=age))


def cluster(message):
    return RayCluster("cluster-1", "uid", "1", "job-uid", "demo-1", "FailedCreateHeadPod", message)


def reported(ray_job=None, status=None, **rest):
    decision = decide(observed(raw_job(status=status), ray_job or raw_ray_job(**UP), **rest), START, SETTINGS)
    running = next(each for each in decision.status["conditions"] if each["type"] == "Running")
    return decision, running["reason"], running["message"]


SECRET = 'MountVolume.SetUp failed for volume "secret-0" : secret "s3-keys" not found'
UNSCHEDULABLE = condition(
    "PodScheduled", False, "Unschedulable", "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
)
QUOTA = (
    'pods "demo-1-head" is forbidden: exceeded quota: team, requested: requests.nvidia.com/gpu=8, used: 0, limited: 4'
)
ACCOUNT = (
    'pods "demo-1-head" is forbidden: error looking up service account team/trainer: serviceaccount "trainer" not found'
)
STUCK = {
    "unschedulable": (
        {"pods": [pending(conditions=[UNSCHEDULABLE])]},
        "Unschedulable",
        ["Insufficient nvidia.com/gpu", "gpusPerNode"],
    ),
    "image": (
        {"pods": [pending(containerStatuses=waiting("ImagePullBackOff", 'Back-off pulling image "nowhere/x"'))]},
        "ImagePull",
        ["nowhere/x", "cluster.image", "imagePullSecrets"],
    ),
    "secret": (
        {"pods": [pending()], "evidence": Evidence((event("Pod", "demo-1-worker", "FailedMount", SECRET),))},
        "SecretMissing",
        ["Secret s3-keys", "namespace team", "Create it"],
    ),
    "secret of an environment variable": (
        {"pods": [pending(containerStatuses=waiting("CreateContainerConfigError", 'secret "hf" not found'))]},
        "SecretMissing",
        ["Secret hf"],
    ),
    "config map": (
        {
            "pods": [pending()],
            "evidence": Evidence((event("Pod", "demo-1-worker", "FailedMount", 'configmap "lorarl-demo" not found'),)),
        },
        "ConfigMapMissing",
        ["lorarl creates it again"],
    ),
    "service account": (
        {"ray_clusters": (cluster(ACCOUNT),)},
        "ServiceAccountMissing",
        ["ServiceAccount trainer", "serviceAccountName"],
    ),
    "quota of the pods": (
        {"ray_clusters": (cluster(QUOTA),)},
        "QuotaExceeded",
        ["exceeded quota: team", "kubectl describe quota"],
    ),
    "quota, from events": (
        {"evidence": Evidence((event("RayCluster", "cluster-1", "FailedToCreateHeadPod", QUOTA),))},
        "QuotaExceeded",
        ["exceeded quota: team"],
    ),
    "a Job with the name of KubeRay's submitter": (
        {
            "evidence": Evidence(
                (
                    event(
                        "RayJob",
                        "demo-1",
                        "FailedToCreateRayJobSubmitter",
                        'Failed: jobs.batch "demo-1" already exists',
                    ),
                )
            )
        },
        "NameTaken",
        ["Job demo-1 already exists", "Delete it"],
    ),
    "pod security": (
        {
            "ray_clusters": (
                cluster('violates PodSecurity "restricted:latest": container "ray-job-submitter" must set ...'),
            )
        },
        "PodRefused",
        ["ray-job-submitter", "submissionMode", "HTTPMode"],
    ),
    "root image": (
        {"pods": [pending(containerStatuses=waiting("CreateContainerConfigError", "image will run as root"))]},
        "ContainerRefused",
        ["run as root", "Correct the image"],
    ),
    "refused by KubeRay": (
        {
            "ray_job": raw_ray_job(
                jobDeploymentStatus="ValidationFailed", message="restartPolicy for head Pod should be Never"
            )
        },
        "RayJobRefused",
        ["restartPolicy for head Pod", "podTemplateOverrides"],
    ),
    "no KubeRay": ({"ray_job": raw_ray_job(age=11)}, "NoKubeRay", ["operator is running", "namespace team"]),
    "a suspended RayJob without a queue": (
        {"ray_job": raw_ray_job(suspend=True)},
        "RayJobSuspended",
        ["but not by Kueue", "Delete it"],
    ),
}


@pytest.mark.parametrize("name", STUCK)
def test_what_is_wrong_and_what_to_do(name):
    seen, reason, words = STUCK[name]
    decision, found_reason, message = reported(**seen)
    assert found_reason == reason
    assert decision.status["phase"] == "Pending"
    for word in words:
        assert word in message
    assert any(each.reason == reason for each in decision.events)


@pytest.mark.parametrize("name", STUCK)
def test_it_is_reported_once(name):
    seen, _, _ = STUCK[name]
    decision, _, _ = reported(**seen)
    later, again = START + timedelta(seconds=30), dict(seen)
    if "evidence" in again:
        again["evidence"] = None  # between two looks at the Events
    ray_job = again.pop("ray_job", None) or raw_ray_job(**UP)
    assert decide(observed(raw_job(status=decision.status), ray_job, **again), later, SETTINGS).status is None


def test_numbers_that_change_are_not_news():
    decision, _, _ = reported(pods=[pending(conditions=[UNSCHEDULABLE])])
    other = UNSCHEDULABLE | {"message": "0/17 nodes are available: 17 Insufficient nvidia.com/gpu."}
    seen = observed(raw_job(status=decision.status), raw_ray_job(**UP), pods=[pending(conditions=[other])])
    assert decide(seen, START, SETTINGS).status is None


@pytest.mark.parametrize(
    "text", ['pods "{}" is forbidden: exceeded quota: team', 'Pod "{}" is invalid: metadata.annotations: Too long']
)
def test_the_name_of_a_pod_that_is_never_created_is_not_news(text):
    def refused(name):
        return cluster(f"FailedCreateWorkerPod\n{text.format(name)}")

    decision, _, message = reported(ray_clusters=(refused("demo-1-abcde"),))
    assert message.startswith("its pod is ")
    seen = observed(raw_job(status=decision.status), raw_ray_job(**UP), ray_clusters=(refused("demo-1-vwxyz"),))
    assert decide(seen, START, SETTINGS).status is None


def test_it_reports_when_the_blocker_is_gone():
    decision, _, _ = reported(pods=[pending(conditions=[UNSCHEDULABLE])])
    again, reason, _ = reported(status=decision.status, pods=[raw_pod()])
    assert (again.status["phase"], reason) == ("Starting", "Starting")


def test_a_reason_from_events_ends_with_the_next_look_at_them():
    seen, _, _ = STUCK["secret"]
    decision, _, _ = reported(**seen)
    again, reason, _ = reported(status=decision.status, pods=[raw_pod()], evidence=Evidence())
    assert (again.status["phase"], reason) == ("Starting", "Starting")


def test_a_busy_kuberay_is_not_a_missing_one():
    started_another = START - timedelta(seconds=3)
    _, reason, _ = reported(ray_job=raw_ray_job(age=100), kuberay_began=started_another)
    assert reason == "Starting"
    _, reason, _ = reported(ray_job=raw_ray_job(age=100), kuberay_began=started_another - timedelta(seconds=10))
    assert reason == "NoKubeRay"


def test_old_events_are_not_believed():
    old = Evidence((event("Pod", "demo-1-worker", "FailedMount", SECRET, age=600),))
    _, reason, _ = reported(pods=[pending()], evidence=old)
    assert reason == "Starting"


def test_an_object_that_kuberay_creates_twice_is_not_missing():
    twice = event(
        "RayJob",
        "demo-1",
        "FailedToCreateRayCluster",
        'Failed to create RayCluster team/c: rayclusters.ray.io "c" already exists',
    )
    _, reason, _ = reported(pods=[raw_pod("head")], evidence=Evidence((twice,)))
    assert reason == "Starting"


def test_a_busy_kubelet_is_not_the_users_mistake():
    failed = 'MountVolume.SetUp failed for volume "job"'
    busy = f"{failed} : failed to sync configmap cache: timed out waiting for the condition"
    _, reason, _ = reported(pods=[pending()], evidence=Evidence((event("Pod", "demo-1-worker", "FailedMount", busy),)))
    assert reason == "Starting"


def test_our_own_missing_objects_are_created_again():
    seen, _, _ = STUCK["config map"]
    decision, _, _ = reported(status={"phase": "Starting", "rayJobName": "demo-1"}, **seen)
    assert [apply.manifest["kind"] for apply in decision.prepare] == [
        "ServiceAccount",
        "ConfigMap",
        "NetworkPolicy",
        "Role",
        "RoleBinding",
    ]


def test_events_are_fetched_after_5_seconds_and_then_less_and_less_often():
    def looked(age, **rest):
        return decide(observed(raw_job(), raw_ray_job(age=age, **UP), **rest), START, SETTINGS)

    assert (looked(1).wants_evidence, looked(1).recheck_seconds) == (None, 4)
    assert (looked(5).wants_evidence, looked(5).recheck_seconds) == (Want.EVENTS, 5)
    assert looked(-3600).wants_evidence is Want.EVENTS  # Our clock is behind.
    assert looked(9000).recheck_seconds == 120
    assert looked(9000, pods=[pending()]).recheck_seconds == 20  # The kubelet is working on it.


@pytest.mark.parametrize(
    ("conditions", "words"),
    [
        (
            (("QuotaReserved", False, "Pending", "insufficient unused quota for nvidia.com/gpu, 8 more needed"),),
            ["8 more needed"],
        ),
        (
            (("QuotaReserved", False, "Inadmissible", "LocalQueue research doesn't exist"),),
            ["LocalQueue research", "kubectl get localqueues"],
        ),
        (
            (("QuotaReserved", True, "QuotaReserved", ""), ("Admitted", False, "", "waiting for checks")),
            ["waiting for checks"],
        ),
    ],
)
def test_a_queued_job_says_what_it_waits_for(conditions, words):
    ray_job = raw_ray_job(suspend=True)
    ray_job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "research"
    decision, reason, message = reported(ray_job, evidence=Evidence(workload=Workload("w", conditions)))
    assert (reason, decision.status["phase"]) == ("Queued", "Pending")
    for word in ("queue research", *words):
        assert word in message
    seen = observed(raw_job(status=decision.status), ray_job)
    assert decide(seen, START, SETTINGS).status is None
    _, _, message = reported(ray_job, evidence=Evidence(workload=Workload("", ())))
    assert "Kueue is running" in message


def test_a_message_never_contains_a_secret():
    pods = [
        pending(
            containerStatuses=waiting("ImagePullBackOff", "pull https://user:hunter2@registry.example.com/x failed")
        )
    ]
    _, _, message = reported(pods=pods)
    assert "hunter2" not in message


def test_events_as_the_api_server_has_them():
    raw = {
        "involvedObject": {"kind": "Pod", "name": "p"},
        "reason": "FailedMount",
        "message": "m",
        "lastTimestamp": None,
        "eventTime": "2026-03-01T12:00:00.000000Z",
        "metadata": {},
    }
    assert parse.event(raw) == KubeEvent("Pod", "p", "FailedMount", "m", START)
    assert parse.workload(
        {"metadata": {"name": "w"}, "status": {"conditions": [condition("QuotaReserved", False, "Pending", "m")]}}
    ) == Workload("w", (("QuotaReserved", False, "Pending", "m"),))
