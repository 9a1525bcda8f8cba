"""The deletion of a LoRARLJob with all its objects.

With `deletionPolicy: Delete` its checkpoints are deleted too, by a Job that may fail or hang.
"""

from __future__ import annotations

import pytest

from support.cluster.client import Object
from support.cluster.kwok import ENDS_AT_ONCE, HELD
from support.cluster.lorarljobs import events, lorarljob, phase, wait_event
from support.cluster.operator import Operator
from support.cluster.platform import Platform
from support.cluster.processes import until

DELETE = {"uri": "s3://team/adapters", "deletionPolicy": "Delete", "credentialsSecret": "s3-keys"}
OWNED = ("RayJob", "RayCluster", "Pod", "ConfigMap", "ServiceAccount", "Role", "RoleBinding")


def running(p: Platform, namespace: str, name: str, **spec: object) -> Object:
    p.api.create(lorarljob(namespace, name, **spec))
    return p.api.wait("LoRARLJob", name, namespace, lambda job: phase(job) == "Running", seconds=30)


def all_gone(p: Platform, namespace: str, name: str) -> None:
    for kind in OWNED:
        until(
            15,
            f"{kind} of {name} is gone",
            lambda kind=kind: not p.api.list(kind, namespace, labels=f"lorarl.io/job={name}"),
        )


def reported_once(p: Platform, namespace: str, name: str, reason: str) -> bool:
    """Whether the operator wrote such an Event once, and not at each reconciliation.

    Events are written in order, so the Event of a later job shows that no more are queued.
    """
    p.api.create(lorarljob(namespace, f"after-{name}", suspend=True))
    wait_event(p.api, namespace, f"after-{name}", "Suspended")
    p.api.delete("LoRARLJob", f"after-{name}", namespace)
    counts = [event["count"] for event in events(p.api, namespace, name) if event["reason"] == reason]
    return len(counts) == 1 and counts[0] <= 2  # Twice if the removal of the finalizer met a conflict.


@pytest.fixture(scope="module", autouse=True)
def broken(kuberay_platform: Platform, replica: Operator) -> str:
    """A namespace with two jobs whose clean-up fails or hangs while the other tests run. The last test checks them.

    Their image causes the problem, so the jobs themselves never run.
    """
    p = kuberay_platform
    namespace = p.namespace("cleanup")
    for name, image in (("fails", ENDS_AT_ONCE), ("hangs", HELD)):
        p.api.create(lorarljob(namespace, name, checkpoint=DELETE, cluster={"image": image}))
    for name in ("fails", "hangs"):
        p.api.wait("RayJob", f"{name}-1", namespace, bool)
        p.api.delete("LoRARLJob", name, namespace)
    p.api.wait("Job", "lorarl-fails-cleanup", namespace, bool)
    # Three retries would take a minute.
    p.api.patch("Job", "lorarl-fails-cleanup", {"spec": {"backoffLimit": 0}}, namespace)
    return namespace


@pytest.mark.parametrize("policy", ["Background", "Foreground"])
def test_with_retain_everything_but_the_checkpoints_is_deleted(
    kuberay_platform: Platform, replica: Operator, policy: str
) -> None:
    p = kuberay_platform
    namespace = p.namespace("retain")
    job = running(p, namespace, "kept")
    assert "finalizers" not in job["metadata"]
    p.api.delete("LoRARLJob", "kept", namespace, policy=policy)
    p.api.wait_gone("LoRARLJob", "kept", namespace)
    all_gone(p, namespace, "kept")
    assert p.api.list("Job", namespace) == []


@pytest.mark.parametrize("policy", ["Background", "Foreground"])
def test_with_delete_a_job_removes_the_checkpoints_first(
    kuberay_platform: Platform, replica: Operator, policy: str
) -> None:
    p = kuberay_platform
    namespace = p.namespace("delete")
    job = running(
        p, namespace, "removed", checkpoint=DELETE, cluster={"serviceAccountAnnotations": {"example.com/role": "store"}}
    )
    assert job["metadata"]["finalizers"] == ["lorarl.io/cleanup"]
    p.api.delete("LoRARLJob", "removed", namespace, policy=policy)
    cleanup = p.api.wait("Job", "lorarl-removed-cleanup", namespace, bool)
    pod = cleanup["spec"]["template"]["spec"]
    assert pod["containers"][0]["command"][:2] == ["lorarl", "purge"]
    assert [v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v] == ["s3-keys"]
    p.api.wait_gone("LoRARLJob", "removed", namespace)
    done = p.api.get("Job", "lorarl-removed-cleanup", namespace)
    assert done is not None and done["status"]["succeeded"] == 1
    account = p.api.get("ServiceAccount", "lorarl-removed.cleanup", namespace)
    assert account is not None and account["metadata"]["annotations"] == {"example.com/role": "store"}
    all_gone_but_cleanup(p, namespace, "removed")
    assert "s3://team/adapters/removed" in wait_event(p.api, namespace, "removed", "CheckpointsRemoved")
    assert reported_once(p, namespace, "removed", "CheckpointsRemoved")
    # The same name again: the old clean-up Job does not block it.
    running(p, namespace, "removed")
    p.api.delete("LoRARLJob", "removed", namespace)


def all_gone_but_cleanup(p: Platform, namespace: str, name: str) -> None:
    for kind in ("RayJob", "RayCluster", "ConfigMap", "Role", "RoleBinding"):
        until(
            15,
            f"{kind} of {name} is gone",
            lambda kind=kind: not p.api.list(kind, namespace, labels=f"lorarl.io/job={name}"),
        )


def test_a_namespace_with_such_a_job_can_be_deleted(kuberay_platform: Platform, replica: Operator) -> None:
    p = kuberay_platform
    namespace = p.namespace("terminating")
    running(p, namespace, "inside", checkpoint=DELETE, cluster={"terminationGracePeriodSeconds": 1})
    p.api.delete("Namespace", namespace)
    # Nothing can be created in it any more, so the checkpoints stay, and no one waits for their clean-up.
    p.api.wait_gone("LoRARLJob", "inside", namespace, seconds=30)
    left = "s3://team/adapters/inside stays in the store. The namespace is being deleted."
    assert f"{namespace}/inside: CheckpointsLeft: {left}" in replica.process.log.read_text()
    p.api.wait_gone("Namespace", namespace, seconds=40)


def test_a_job_that_never_ran_is_deleted_without_a_clean_up(kuberay_platform: Platform, replica: Operator) -> None:
    p = kuberay_platform
    namespace = p.namespace("never")
    p.api.create(lorarljob(namespace, "never", suspend=True, checkpoint=DELETE))
    p.api.wait("LoRARLJob", "never", namespace, lambda job: phase(job) == "Suspended")
    p.api.delete("LoRARLJob", "never", namespace)
    p.api.wait_gone("LoRARLJob", "never", namespace)
    assert p.api.list("Job", namespace) == []


def test_the_policy_may_change_while_it_runs(kuberay_platform: Platform, replica: Operator) -> None:
    p = kuberay_platform
    namespace = p.namespace("policy")
    p.api.create(lorarljob(namespace, "fickle"))
    p.api.wait("RayJob", "fickle-1", namespace, bool)
    for policy, finalizers in (("Delete", ["lorarl.io/cleanup"]), ("Retain", [])):
        p.api.patch("LoRARLJob", "fickle", {"spec": {"checkpoint": {"deletionPolicy": policy}}}, namespace)
        p.api.wait(
            "LoRARLJob", "fickle", namespace, lambda job, want=finalizers: job["metadata"].get("finalizers", []) == want
        )
    p.api.delete("LoRARLJob", "fickle", namespace)
    p.api.wait_gone("LoRARLJob", "fickle", namespace)


@pytest.mark.long
def test_a_clean_up_that_fails_is_reported_and_blocks_nothing(kuberay_platform: Platform, broken: str) -> None:
    """The operator of this platform allows 40 s for a clean-up."""
    p = kuberay_platform
    for name, why in (
        ("fails", "Job lorarl-fails-cleanup failed: Job has reached the specified backoff limit"),
        ("hangs", ""),
    ):
        p.api.wait_gone("LoRARLJob", name, broken, seconds=60)
        left = wait_event(p.api, broken, name, "CheckpointsLeft")
        assert f"s3://team/adapters/{name} stays in the store. {why}" in left
        assert "Delete yourself what you do not need there." in left
    # It would delete what a new job of this name writes.
    p.api.wait_gone("Job", "lorarl-hangs-cleanup", broken, seconds=10)
