"""What Flux, helm and Argo CD make of a job, from its creation to its end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.cluster.client import Object
from support.cluster.control_plane import Cluster
from support.cluster.lorarljobs import condition, lorarljob, phase
from support.cluster.operator import Operator
from support.cluster.platform import Platform
from support.cluster.tools import tools_or_skip
from support.gitops import judged

Judged = tuple[str, str, str]


def judge(job: Object) -> Judged:
    with tools_or_skip():
        return judged([job])[0]


def test_a_job_that_no_operator_has_seen_is_not_current(cluster: Cluster) -> None:
    cluster.api.create(lorarljob("default", "unseen"))
    job = cluster.api.get("LoRARLJob", "unseen", "default")
    assert job is not None
    assert judge(job) == ("InProgress", "Progressing", "The operator has not seen this version of the job yet.")
    cluster.api.delete("LoRARLJob", "unseen", "default")


@pytest.fixture
def until(kuberay_platform: Platform, replica: Operator) -> Callable[..., Judged]:
    """Wait until a job has a phase and one of some reasons, and judge it."""
    api = kuberay_platform.api

    def judged_at(namespace: str, wanted: str, *reasons: str) -> Judged:
        def there(job: Object) -> bool:
            return phase(job) == wanted and condition(job, "Running")["reason"] in reasons

        return judge(api.wait("LoRARLJob", "demo", namespace, there, seconds=30))

    return judged_at


def test_a_job_that_fails(kuberay_platform: Platform, until: Callable[..., Judged]) -> None:
    p, namespace = kuberay_platform, kuberay_platform.namespace("flux")
    p.api.create(lorarljob(namespace, "demo", backoffLimit=0))
    assert until(namespace, "Running", "Running") == (
        "Current",
        "Progressing",
        "Attempt 1 is training in RayJob demo-1.",
    )
    p.finish(namespace, "demo-1", "FAILED", "the reward raised an exception")
    # KubeRay sees the dashboard's word first, or the submitter's end.
    kstatus, argo, message = until(namespace, "Failed", "AppFailed", "SubmissionFailed")
    assert (kstatus, argo) == ("Failed", "Degraded")
    assert message.startswith("Attempt 1 failed, and backoffLimit is 0.")
    p.api.delete("LoRARLJob", "demo", namespace)


def test_a_job_that_waits_and_is_suspended(kuberay_platform: Platform, until: Callable[..., Judged]) -> None:
    p, namespace = kuberay_platform, kuberay_platform.namespace("flux")
    p.api.create(lorarljob(namespace, "demo", cluster={"gpusPerNode": 64}))
    assert until(namespace, "Pending", "Unschedulable")[:2] == ("InProgress", "Progressing")
    p.cluster.must("patch", "lrj", "demo", "-n", namespace, "--type=merge", "-p", '{"spec":{"suspend":true}}')
    assert until(namespace, "Suspended", "Suspended")[:2] == ("Current", "Suspended")
    p.api.delete("LoRARLJob", "demo", namespace)
