"""spec.suspend, as in batch/v1: setting it frees the machines in any phase, and unsetting it resumes the job."""

from __future__ import annotations

import json

from support.cluster.client import ApiError, Object
from support.cluster.lorarljobs import condition, lorarljob, phase, report, wait_event
from support.cluster.operator import Operator
from support.cluster.platform import Platform
from support.cluster.processes import until

JOBS = ("born", "pending", "starting", "running")


def test_suspended_and_resumed_in_any_phase(kuberay_platform: Platform, replica: Operator) -> None:
    p = kuberay_platform
    namespace = p.namespace("suspend")
    p.api.create(lorarljob(namespace, "born", suspend=True))
    p.api.create(lorarljob(namespace, "pending", cluster={"gpusPerNode": 64}))
    p.api.create(lorarljob(namespace, "running"))
    p.api.wait(
        "LoRARLJob",
        "pending",
        namespace,
        lambda job: condition(job, "Running").get("reason") == "Unschedulable",
        seconds=30,
    )
    before = p.api.wait("LoRARLJob", "running", namespace, lambda job: phase(job) == "Running", seconds=30)
    p.api.create(lorarljob(namespace, "starting"))
    p.api.wait("RayJob", "starting-1", namespace, bool)
    for name in JOBS:
        p.api.patch("LoRARLJob", name, {"spec": {"suspend": True}}, namespace)
    for name in JOBS:
        job = p.api.wait("LoRARLJob", name, namespace, lambda job: phase(job) == "Suspended", seconds=30)
        assert condition(job, "Suspended")["status"] == "True"
        assert "If it is set to false, the job resumes" in condition(job, "Suspended")["message"]
        assert "startTime" not in job["status"]
        assert (job["status"]["attempts"], job["status"]["preemptions"]) == (0, 0)
    assert p.api.list("RayJob", namespace) == []
    until(20, "no pod is left", lambda: not p.api.list("Pod", namespace))
    for name in JOBS:
        p.api.patch("LoRARLJob", name, {"spec": {"suspend": False}}, namespace)
    for name in ("born", "starting", "running"):
        job = p.api.wait("LoRARLJob", name, namespace, lambda job: phase(job) == "Running", seconds=40)
        assert condition(job, "Suspended").get("status", "False") == "False"
        assert (job["status"]["attempts"], job["status"]["preemptions"]) == (0, 0)
        assert len(p.api.list("RayJob", namespace, labels=f"lorarl.io/job={name}")) == 1
    after = p.api.get("LoRARLJob", "running", namespace)
    assert after is not None
    assert after["status"]["rayJobName"] == "running-2"
    assert after["status"]["startTime"] > before["status"]["startTime"], "the clock of activeDeadlineSeconds restarts"
    p.cluster.must("wait", "--for=condition=Running", "lrj/running", "-n", namespace, "--timeout=5s")
    p.cluster.must("delete", "lrj", "--all", "-n", namespace)


def test_mutable_fields_can_change_while_it_runs_and_others_cannot(
    kuberay_platform: Platform, replica: Operator
) -> None:
    p = kuberay_platform
    namespace = p.namespace("change")
    p.api.create(lorarljob(namespace, "longer"))
    p.api.wait("LoRARLJob", "longer", namespace, lambda job: phase(job) == "Running", seconds=30)
    rayjob = p.api.get("RayJob", "longer-1", namespace)
    p.api.patch("LoRARLJob", "longer", {"spec": {"trainer": {"steps": 500}}}, namespace)

    def steps() -> int:
        config = p.api.get("ConfigMap", "lorarl-longer", namespace)
        assert config is not None
        found: int = json.loads(config["data"]["job.yaml"])["spec"]["trainer"]["steps"]
        return found

    until(10, "the trainer's manifest has the new steps", lambda: steps() == 500)
    p.api.wait(
        "LoRARLJob",
        "longer",
        namespace,
        lambda job: job["status"]["observedGeneration"] == job["metadata"]["generation"],
    )
    now = p.api.get("RayJob", "longer-1", namespace)
    assert rayjob is not None and now is not None
    assert (now["metadata"]["uid"], now["metadata"]["generation"]) == (
        rayjob["metadata"]["uid"],
        rayjob["metadata"]["generation"],
    )
    for change, message in (
        ({"adapter": {"rank": 16}}, "another metadata.name"),
        ({"cluster": {"nodes": 2}}, "may change only while nothing runs"),
        ({"trainer": {"seed": 7}}, "Delete the job and apply it again"),
    ):
        try:
            p.api.patch("LoRARLJob", "longer", {"spec": change}, namespace)
        except ApiError as refused:
            assert refused.status == 422 and message in str(refused)
        else:
            raise AssertionError(f"{change} was not refused")
    p.api.delete("LoRARLJob", "longer", namespace)


def test_steps_that_are_raised_late(kuberay_platform: Platform, replica: Operator) -> None:
    """If the training has ended, the next attempt does them. If the job has ended, none does."""
    p = kuberay_platform
    namespace = p.namespace("more")
    p.api.create(lorarljob(namespace, "more"))

    def is_at(rayjob: str, wanted: str) -> None:
        def holds(job: Object) -> bool:
            return phase(job) == wanted and job["status"].get("rayJobName") == rayjob

        p.api.wait("LoRARLJob", "more", namespace, holds, seconds=60)

    is_at("more-1", "Running")
    report(p.api, namespace, "more", step=10, totalSteps=10)
    p.api.patch("LoRARLJob", "more", {"spec": {"trainer": {"steps": 20}}}, namespace)
    p.finish(namespace, "more-1", "SUCCEEDED")
    is_at("more-2", "Running")
    report(p.api, namespace, "more", step=20, totalSteps=20)
    p.finish(namespace, "more-2", "SUCCEEDED")
    is_at("more-2", "Succeeded")
    p.api.patch("LoRARLJob", "more", {"spec": {"trainer": {"steps": 30}}}, namespace)
    too_late = wait_event(p.api, namespace, "more", "TooLate")
    assert "trainer.steps is now 30, but the job ended at step 20" in too_late
    assert "trainer.steps is now 20" in wait_event(p.api, namespace, "more", "MoreSteps")
    job = p.api.get("LoRARLJob", "more", namespace)
    assert job is not None
    assert (phase(job), job["status"]["restarts"]) == ("Succeeded", 0)
    p.api.delete("LoRARLJob", "more", namespace)


def test_a_role_that_a_job_gives_up_is_taken_from_its_account(kuberay_platform: Platform, replica: Operator) -> None:
    """By an annotation of its ServiceAccount, a cloud gives the job's pods a role."""
    p = kuberay_platform
    namespace = p.namespace("role")
    given = {"cloud.example/role": "admin", "cloud.example/audience": "a"}
    p.api.create(lorarljob(namespace, "role", suspend=True, cluster={"serviceAccountAnnotations": given}))
    p.api.wait("LoRARLJob", "role", namespace, lambda job: phase(job) == "Suspended", seconds=30)

    def annotations() -> Object:
        account = p.api.get("ServiceAccount", "lorarl-role", namespace)
        found: Object = account["metadata"].get("annotations", {}) if account else {}
        return found

    for suspend in (False, True):
        p.api.patch("LoRARLJob", "role", {"spec": {"suspend": suspend}}, namespace)
        wanted = "Suspended" if suspend else "Running"
        p.api.wait("LoRARLJob", "role", namespace, lambda job, wanted=wanted: phase(job) == wanted, seconds=40)
    assert annotations() == given
    p.api.patch("ServiceAccount", "lorarl-role", {"metadata": {"annotations": {"others.example/kept": "1"}}}, namespace)
    cluster = {"serviceAccountAnnotations": {"cloud.example/role": None, "cloud.example/audience": "b"}}
    p.api.patch("LoRARLJob", "role", {"spec": {"suspend": False, "cluster": cluster}}, namespace)
    p.api.wait("LoRARLJob", "role", namespace, lambda job: phase(job) == "Running", seconds=40)
    assert annotations() == {"cloud.example/audience": "b", "others.example/kept": "1"}
    p.cluster.must("delete", "lrj", "--all", "-n", namespace)
