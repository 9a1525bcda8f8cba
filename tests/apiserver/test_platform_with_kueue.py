"""The platform with Kueue behaves like a cluster with Kueue."""

from __future__ import annotations

from support.cluster.kueue import add_priority_class, add_queue
from support.cluster.platform import Platform
from support.cluster.processes import until
from support.cluster.rayjobs import rayjob


def test_kueue_holds_a_rayjob_until_there_is_quota_and_says_so(kueue_platform: Platform) -> None:
    p = kueue_platform
    namespace = p.namespace()
    add_queue(p.cluster, namespace, f"{namespace}-queue", {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "1"})
    p.api.create(rayjob(namespace, "first", queue=f"{namespace}-queue"))
    p.wait_running(namespace, "first")
    second = p.api.create(rayjob(namespace, "second", queue=f"{namespace}-queue"))
    assert second["spec"]["suspend"] is True

    def message() -> str | None:
        for workload in p.api.list("Workload", namespace):
            owned = workload["metadata"]["ownerReferences"][0]["name"] == "second"
            for condition in workload.get("status", {}).get("conditions", []):
                if owned and condition["type"] == "QuotaReserved" and condition["status"] == "False":
                    return str(condition["message"])
        return None

    assert "insufficient" in until(10, "Kueue says why the second waits", message)
    p.finish(namespace, "first", "SUCCEEDED")
    p.wait_running(namespace, "second")


def test_kueue_suspends_and_resumes_a_rayjob_of_lower_priority(kueue_platform: Platform) -> None:
    p = kueue_platform
    namespace = p.namespace()
    add_queue(p.cluster, namespace, f"{namespace}-queue", {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "1"})
    add_priority_class(p.cluster, "urgent", 1000)
    p.api.create(rayjob(namespace, "first", queue=f"{namespace}-queue"))
    p.wait_running(namespace, "first")
    urgent = rayjob(namespace, "urgent", queue=f"{namespace}-queue")
    urgent["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "urgent"
    p.api.create(urgent)
    p.api.wait("RayJob", "first", namespace, lambda o: o["status"]["jobDeploymentStatus"] == "Suspended")
    p.wait_running(namespace, "urgent")
    p.finish(namespace, "urgent", "SUCCEEDED")
    p.wait_running(namespace, "first")
