"""Schedules in a cluster: the real API server, KubeRay on simulated nodes, and the operator's process.

A time that comes is a cron expression that is changed to one whose time has just come. The trainings are what tests
report of them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lorarl_api.v1alpha1 import LoRARLScheduleStatus
from support.cluster.audit import account, refused, writes
from support.cluster.client import Object
from support.cluster.crds import CRDS
from support.cluster.lorarljobs import condition, phase, report
from support.cluster.operator import ROOT, SYSTEM, Operator, operator, prepare, quiet, wait_leader
from support.cluster.platform import Platform, platform
from support.cluster.processes import until
from support.cluster.schedules import KIND, create_due, days_ago, job_of, lorarlschedule
from support.cluster.tools import tools_or_skip
from support.helm import rendered

ACCOUNT = "operator-lorarl"
"""The name that the chart gives it: the chart's policy for the account applies to these tests."""
OPERATOR = account(SYSTEM, ACCOUNT)
SECONDS = 60.0
PAGE = (ROOT / "docs/schedules.md").read_text()


@pytest.fixture(scope="module")
def p(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with tools_or_skip(), platform(tmp_path_factory.mktemp("schedules"), crds=CRDS, audit=True) as running:
        for one in (one for one in rendered() if one["kind"].startswith("ValidatingAdmissionPolicy")):
            running.cluster.must("apply", "-f", "-", stdin=json.dumps(one))
        yield running


@contextmanager
def leading(p: Platform, name: str) -> Iterator[Operator]:
    with operator(p.cluster, prepare(p.cluster, account=ACCOUNT), name) as one:
        wait_leader(one)
        yield one


@pytest.fixture
def replica(p: Platform, request: pytest.FixtureRequest) -> Iterator[Operator]:
    with leading(p, request.node.name[:30]) as one:
        yield one


def wait(p: Platform, namespace: str, **wanted: object) -> Object:
    """The schedule when its status has these values; None stands for a field that is absent."""

    def holds(schedule: Object) -> bool:
        return all(schedule.get("status", {}).get(key) == value for key, value in wanted.items())

    found = p.api.wait(KIND, "nightly", namespace, holds, seconds=SECONDS)
    LoRARLScheduleStatus.model_validate(found["status"])
    return found


def change(p: Platform, namespace: str, **spec: object) -> None:
    p.api.patch(KIND, "nightly", {"spec": spec}, namespace)


def comes(p: Platform, namespace: str, days: int) -> None:
    """The time of so many days ago comes."""
    change(p, namespace, schedule=days_ago(days))


def finish(p: Platform, namespace: str, days: int, status: str = "SUCCEEDED") -> None:
    """The job of a time ends, with an adapter."""
    p.wait_running(namespace, f"{job_of(days)}-1", seconds=SECONDS)
    uri = f"s3://team/adapters/{job_of(days)}/iter_0000010/lora_adapter"
    adapter = {"uri": uri, "step": 10, "version": 11, "sha256": "a" * 64}
    report(p.api, namespace, job_of(days), step=10, totalSteps=10, adapter=adapter)
    p.finish(namespace, f"{job_of(days)}-1", status)


def names(p: Platform, namespace: str) -> set[str]:
    return {one["metadata"]["name"] for one in p.api.list("LoRARLJob", namespace)}


def events(p: Platform, namespace: str) -> list[str]:
    found = p.api.list("Event", namespace, fields=f"involvedObject.name=nightly,involvedObject.kind={KIND}")
    return [one["reason"] for one in found]


def made(p: Platform, namespace: str) -> list[str]:
    """The jobs that the operator created, each time that it did."""
    return [one for one in writes(p.cluster.audit_log, OPERATOR, namespace) if one.startswith("create lorarljobs")]


def test_each_job_continues_from_the_one_before(p: Platform, replica: Operator) -> None:
    namespace = p.namespace("each")
    labels = {"kueue.x-k8s.io/priority-class": "low", "team": "a"}
    create_due(p.api, lorarlschedule(namespace, labels=labels, continueFrom="last"))
    p.wait_running(namespace, f"{job_of(9)}-1", seconds=SECONDS)
    first = p.api.get("LoRARLJob", job_of(9), namespace) or {}
    assert "initFrom" not in first["spec"]["adapter"]
    assert first["metadata"]["labels"] == {"kueue.x-k8s.io/priority-class": "low", "lorarl.io/schedule": "nightly"}
    wait(p, namespace, phase="Running", lastJob=job_of(9), lastPhase="Running")
    finish(p, namespace, 9)
    found = wait(p, namespace, phase="Scheduled", lastPhase="Succeeded", active=None)
    uri = f"s3://team/adapters/{job_of(9)}/iter_0000010/lora_adapter"
    assert found["status"]["lastAdapter"]["uri"] == uri and found["status"]["lastSuccessfulTime"]
    assert found["status"]["nextScheduleTime"] > found["status"]["lastScheduleTime"]
    comes(p, namespace, 8)
    second = p.api.wait("LoRARLJob", job_of(8), namespace, bool, seconds=SECONDS)
    assert second["spec"]["adapter"]["initFrom"] == uri
    finish(p, namespace, 8)
    wait(p, namespace, phase="Scheduled", lastJob=job_of(8), lastPhase="Succeeded")
    shown = p.cluster.must("get", "lrsch", "-n", namespace).splitlines()
    assert shown[0].split() == [
        "NAME",
        "SCHEDULE",
        "TIMEZONE",
        "SUSPEND",
        "PHASE",
        "LAST",
        "LASTJOB",
        "LASTPHASE",
        "AGE",
    ]
    for word in ("nightly", days_ago(8), "Etc/UTC", "false", "Scheduled", job_of(8), "Succeeded"):
        assert word in shown[1]
    until(20, "Events say so", lambda: events(p, namespace).count("JobSucceeded") == 2)
    quiet(3, lambda: len(writes(p.cluster.audit_log, OPERATOR, namespace)))
    before = len(writes(p.cluster.audit_log, OPERATOR, namespace))
    p.api.patch(KIND, "nightly", {"metadata": {"annotations": {"any": "news"}}}, namespace)
    quiet(5, lambda: len(writes(p.cluster.audit_log, OPERATOR, namespace)))
    assert len(writes(p.cluster.audit_log, OPERATOR, namespace)) == before, "nothing is written at rest"
    assert made(p, namespace) == [f"create lorarljobs {job_of(days)}" for days in (9, 8)]
    assert refused(p.cluster.audit_log, OPERATOR) == []


def test_forbid_leaves_a_time_out_and_replace_deletes_the_running_job(p: Platform, replica: Operator) -> None:
    namespace = p.namespace("policies")
    create_due(p.api, lorarlschedule(namespace, concurrencyPolicy="Forbid"))
    p.wait_running(namespace, f"{job_of(9)}-1", seconds=SECONDS)
    comes(p, namespace, 8)
    found = p.api.wait(KIND, "nightly", namespace, lambda one: "skipped" in one["status"], seconds=SECONDS)
    assert found["status"]["skipped"]["reason"] == "Skipped" and job_of(9) in found["status"]["skipped"]["message"]
    until(20, "an Event says so", lambda: "Skipped" in events(p, namespace))
    assert names(p, namespace) == {job_of(9)}
    finish(p, namespace, 9)
    p.wait_running(namespace, f"{job_of(8)}-1", seconds=SECONDS)
    wait(p, namespace, lastJob=job_of(8), skipped=None)
    change(p, namespace, concurrencyPolicy="Replace", schedule=days_ago(7))
    p.api.wait_gone("LoRARLJob", job_of(8), namespace, seconds=SECONDS)
    p.wait_running(namespace, f"{job_of(7)}-1", seconds=SECONDS)
    assert names(p, namespace) == {job_of(9), job_of(7)}
    until(20, "an Event says so", lambda: "Replaced" in events(p, namespace))


@pytest.mark.long
def test_an_operator_killed_before_it_writes_the_status_makes_no_job_twice(p: Platform) -> None:
    namespace = p.namespace("killed")
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "no-time"},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": ["lorarl.io"],
                        "apiVersions": ["*"],
                        "resources": ["lorarlschedules/status"],
                        "operations": ["UPDATE"],
                    }
                ]
            },
            "matchConditions": [{"name": "operator", "expression": f"request.userInfo.username == '{OPERATOR}'"}],
            "validations": [
                {
                    "expression": "!has(object.status.lastJob) || has(oldObject.status.lastJob)",
                    "message": "The status may not say that there is a job.",
                }
            ],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "no-time"},
        "spec": {"policyName": "no-time", "validationActions": ["Deny"]},
    }
    for one in (policy, binding):
        p.cluster.must("apply", "-f", "-", stdin=json.dumps(one))
    with leading(p, "killed-1") as one:
        create_due(p.api, lorarlschedule(namespace))
        p.wait_running(namespace, f"{job_of(9)}-1", seconds=SECONDS)
        until(20, "the status cannot be written", lambda: "may not say that there is a job" in one.process.tail())
        one.process.kill()
    stored = p.api.get(KIND, "nightly", namespace) or {}
    assert "lastJob" not in stored["status"], "the status does not know of the job"
    p.cluster.must("delete", "validatingadmissionpolicybinding", "no-time")
    with leading(p, "killed-2") as one:
        wait(p, namespace, lastJob=job_of(9), lastPhase="Running")
        one.process.kill()
    comes(p, namespace, 8)
    comes(p, namespace, 7)
    with leading(p, "killed-3"):
        p.wait_running(namespace, f"{job_of(7)}-1", seconds=SECONDS)
        wait(p, namespace, lastJob=job_of(7))
    assert made(p, namespace) == [f"create lorarljobs {job_of(days)}" for days in (9, 7)]


def test_suspend_history_and_deletion(p: Platform, replica: Operator) -> None:
    namespace = p.namespace("history")
    create_due(p.api, lorarlschedule(namespace, successfulJobsHistoryLimit=1, failedJobsHistoryLimit=0))
    finish(p, namespace, 9)
    wait(p, namespace, lastPhase="Succeeded")
    change(p, namespace, suspend=True)
    wait(p, namespace, phase="Suspended", nextScheduleTime=None)
    comes(p, namespace, 8)
    generation = (p.api.get(KIND, "nightly", namespace) or {})["metadata"]["generation"]
    wait(p, namespace, observedGeneration=generation, phase="Suspended")
    assert names(p, namespace) == {job_of(9)}
    change(p, namespace, suspend=False)
    finish(p, namespace, 8)
    p.api.wait_gone("LoRARLJob", job_of(9), namespace, seconds=SECONDS)
    comes(p, namespace, 7)
    p.wait_running(namespace, f"{job_of(7)}-1", seconds=SECONDS)
    p.api.delete(KIND, "nightly", namespace)
    for days in (8, 7):
        p.api.wait_gone("LoRARLJob", job_of(days), namespace, seconds=SECONDS)
    until(SECONDS, "no attempt is left", lambda: not p.api.list("RayJob", namespace))


def test_what_only_the_operator_sees_is_said_in_the_status(p: Platform, replica: Operator) -> None:
    namespace = p.namespace("invalid")
    p.api.create(lorarlschedule(namespace, timeZone="Europe/Nowhere"))
    found = wait(p, namespace, phase="Failed")
    assert 'spec.timeZone: got "Europe/Nowhere"' in condition(found, "Stalled")["message"]
    until(20, "an Event says so", lambda: "Invalid" in events(p, namespace))
    change(p, namespace, timeZone="Europe/Berlin", schedule="0 0 31 2 *")
    found = p.api.wait(KIND, "nightly", namespace, lambda one: "0 0 31 2" in str(condition(one, "Stalled")))
    change(p, namespace, schedule="@daily")
    assert not condition(wait(p, namespace, phase="Scheduled"), "Stalled")


@pytest.mark.long
def test_a_time_comes_while_the_operator_waits(p: Platform, replica: Operator) -> None:
    namespace = p.namespace("minutes")
    p.api.create(lorarlschedule(namespace, schedule="* * * * *", concurrencyPolicy="Forbid"))
    found = p.api.wait(KIND, "nightly", namespace, lambda one: "lastJob" in one["status"], seconds=90)
    (job,) = p.api.list("LoRARLJob", namespace)
    assert job["metadata"]["name"] == found["status"]["lastJob"]
    late = job["metadata"]["creationTimestamp"]
    assert late[:16] == found["status"]["lastScheduleTime"][:16] and int(late[17:19]) <= 5, "within five seconds"


def plugin(p: Platform, *arguments: str) -> str:
    """What `kubectl lorarl` prints."""
    tools = os.pathsep.join([str(Path(p.cluster.kubectl_path).parent), os.environ["PATH"]])
    command = [sys.executable, "-m", "lorarl_trainer.cli.kubectl", *arguments]
    done = subprocess.run(
        [*command, "--kubeconfig", str(p.cluster.kubeconfig)],
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": tools, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_commands_of_the_page_do_what_it_says(p: Platform, replica: Operator) -> None:
    namespace = p.namespace("page")
    left = [line.partition("  #")[0].strip() for line in PAGE.splitlines() if line.startswith("kubectl ")]

    def runs(beginning: str, words: str = "") -> str:
        """Run the one command that begins so and has these words, in this namespace."""
        (command,) = (line for line in left if line.startswith(f"kubectl {beginning}") and words in line)
        left.remove(command)
        arguments = [str(ROOT / one) if one.startswith("examples/") else one for one in shlex.split(command)[1:]]
        if arguments[0] == "lorarl":
            return plugin(p, *arguments[1:], "-n", namespace)
        return p.cluster.must(*arguments, "-n", namespace)

    runs("apply")
    p.api.wait(KIND, "nightly", namespace, lambda one: phase(one) == "Scheduled", seconds=SECONDS)
    assert "Europe/Berlin" in runs("get lorarlschedules")
    assert "Next Schedule Time" in runs("describe")
    runs("patch", '"suspend": true')
    wait(p, namespace, phase="Suspended")
    runs("patch", '"suspend": false')
    wait(p, namespace, phase="Scheduled")
    (started,) = re.findall(r"LoRARLJob (nightly-r\d{7}) is created.", runs("lorarl run-now"))
    p.wait_running(namespace, f"{started}-1", seconds=SECONDS)
    wait(p, namespace, phase="Running", lastJob=None)
    assert started in runs("get lrj -l")
    runs("get lrsch nightly", "jsonpath")
    runs("delete")
    p.api.wait_gone(KIND, "nightly", namespace)
    assert not left, "each command of the page is run"
