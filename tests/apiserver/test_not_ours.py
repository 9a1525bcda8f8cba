"""Objects of other owners are never taken over, changed or deleted. The status names the object in the way."""

from __future__ import annotations

import pytest

from support.cluster.client import Object
from support.cluster.lorarljobs import condition, lorarljob, phase
from support.cluster.operator import Operator
from support.cluster.platform import Platform
from support.cluster.processes import until

RBAC = "rbac.authorization.k8s.io"
HEAD = {
    "rayStartParams": {},
    "template": {"spec": {"containers": [{"name": "ray-head", "image": "test.invalid/runs:1"}]}},
}
FOREIGN: dict[str, tuple[str, Object]] = {
    "ServiceAccount": ("lorarl-taken", {"apiVersion": "v1", "automountServiceAccountToken": False}),
    "ConfigMap": ("lorarl-taken", {"apiVersion": "v1", "data": {"theirs": "yes"}}),
    "Role": ("lorarl-taken", {"apiVersion": f"{RBAC}/v1", "rules": []}),
    "RoleBinding": (
        "lorarl-taken",
        {"apiVersion": f"{RBAC}/v1", "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "view"}, "subjects": []},
    ),
    "RayJob": (
        "taken-1",
        {
            "apiVersion": "ray.io/v1",
            "spec": {
                "entrypoint": "true",
                "suspend": True,
                "shutdownAfterJobFinishes": True,
                "rayClusterSpec": {"headGroupSpec": HEAD},
            },
        },
    ),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_object_is_named_and_left_alone(kuberay_platform: Platform, replica: Operator, kind: str) -> None:
    p = kuberay_platform
    namespace = p.namespace("not-ours")
    name, parts = FOREIGN[kind]
    theirs = p.api.create({"kind": kind, "metadata": {"name": name, "namespace": namespace}, **parts})
    p.api.create(lorarljob(namespace, "taken"))
    job = p.api.wait(
        "LoRARLJob", "taken", namespace, lambda job: condition(job, "Running").get("reason") == "NameTaken"
    )
    assert phase(job) == "Pending"
    assert (
        f"{kind} {name} already exists and belongs to something else. Delete it" in condition(job, "Running")["message"]
    )

    if kind == "ConfigMap":  # After its deletion the job runs. In the other cases the job leaves the foreign object.
        p.api.delete(kind, name, namespace)
        p.api.wait("RayJob", "taken-1", namespace, bool)
    p.api.delete("LoRARLJob", "taken", namespace)
    until(
        15, "the job's own objects are deleted", lambda: not p.api.list("Role", namespace, labels="lorarl.io/job=taken")
    )
    if kind != "ConfigMap":
        left = p.api.get(kind, name, namespace)
        assert left is not None
        assert (left["metadata"]["uid"], left["metadata"].get("labels")) == (theirs["metadata"]["uid"], None)
        assert "ownerReferences" not in left["metadata"]


def test_a_job_that_is_deleted_and_applied_again_at_once_runs(kuberay_platform: Platform, replica: Operator) -> None:
    p = kuberay_platform
    namespace = p.namespace("again")
    p.api.create(lorarljob(namespace, "again"))
    first = p.wait_running(namespace, "again-1")["metadata"]["uid"]
    p.api.wait("LoRARLJob", "again", namespace, lambda job: phase(job) == "Running")
    p.api.delete("LoRARLJob", "again", namespace)
    new = p.api.create(lorarljob(namespace, "again"))
    job = p.api.wait("LoRARLJob", "again", namespace, lambda job: phase(job) == "Running", seconds=40)
    assert (job["metadata"]["uid"], job["status"]["rayJobName"]) == (new["metadata"]["uid"], "again-1")
    assert (job["status"]["attempts"], job["status"]["preemptions"]) == (0, 0)
    rayjob = p.api.get("RayJob", "again-1", namespace)
    assert rayjob is not None and rayjob["metadata"]["uid"] != first
    for kind in ("ServiceAccount", "Role", "RoleBinding", "ConfigMap"):
        made = p.api.get(kind, "lorarl-again", namespace)
        assert made is not None
        assert [owner["uid"] for owner in made["metadata"]["ownerReferences"]] == [new["metadata"]["uid"]]
    p.api.delete("LoRARLJob", "again", namespace)
