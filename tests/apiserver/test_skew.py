"""An operator whose CRD is newer than itself: after `helm upgrade`, and after a downgrade with crds.install=false."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator

import pytest

from support.cluster import pods
from support.cluster.client import Object
from support.cluster.lorarljobs import condition, lorarljob, phase
from support.cluster.operator import Operator
from support.cluster.platform import Platform
from support.cluster.processes import until

CRD = "lorarljobs.lorarl.io"
SECONDS = 30.0


@pytest.fixture(name="p")
def _p(kuberay_platform: Platform, replica: Operator) -> Platform:
    return kuberay_platform


@pytest.fixture
def running(p: Platform) -> Object:
    """A job that runs before the definition is upgraded."""
    job = lorarljob(p.namespace("skew"), "before")
    p.api.create(job)
    return wait(p, job, "Running")


@pytest.fixture
def newer(p: Platform, running: Object) -> Iterator[None]:
    """A definition with two more fields that have defaults."""
    today = p.api.get("CustomResourceDefinition", CRD)
    assert today is not None
    versions = copy.deepcopy(today["spec"]["versions"])
    spec = versions[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    spec["rollout"]["properties"]["beams"] = {"type": "integer", "default": 1}
    spec["extra"] = {"type": "object", "default": {}, "properties": {"a": {"type": "integer", "default": 1}}}
    p.api.patch("CustomResourceDefinition", CRD, {"spec": {"versions": versions}})
    until(20, "the new defaults are served", lambda: "beams" in get(p, running)["spec"].get("rollout", {}))
    yield
    p.api.patch("CustomResourceDefinition", CRD, {"spec": {"versions": today["spec"]["versions"]}})
    until(20, "they are gone again", lambda: "extra" not in get(p, running)["spec"])
    # The operator's watch keeps giving new jobs the newer defaults.
    namespace = running["metadata"]["namespace"]
    for number in range(3):
        assert not is_invalid(judged(p, lorarljob(namespace, f"plain-{number}")))
    p.cluster.must("delete", "lrj", "--all", "-n", namespace)


def get(p: Platform, job: Object) -> Object:
    found = p.api.get("LoRARLJob", job["metadata"]["name"], job["metadata"]["namespace"])
    assert found is not None
    return found


def wait(p: Platform, job: Object, wanted: str) -> Object:
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    return p.api.wait("LoRARLJob", name, namespace, lambda one: phase(one) == wanted, seconds=SECONDS)


def judged(p: Platform, job: Object) -> Object:
    """A job that is created, as soon as the operator has looked at it."""
    p.api.create(job)
    phases, name, namespace = ("Pending", "Starting", "Running"), job["metadata"]["name"], job["metadata"]["namespace"]
    return p.api.wait("LoRARLJob", name, namespace, lambda one: phase(one) in phases, seconds=SECONDS)


def is_invalid(job: Object) -> bool:
    return bool(condition(job, "Running").get("reason") == "Invalid")


def config(p: Platform, job: Object) -> str:
    """What the job's trainer reads."""
    found = p.api.get("ConfigMap", f"lorarl-{job['metadata']['name']}", job["metadata"]["namespace"])
    assert found is not None
    return str(found["data"]["job.yaml"])


def test_new_defaults_stop_no_job(p: Platform, running: Object, newer: None) -> None:
    namespace = running["metadata"]["namespace"]
    # A new job, in which the API server has written the defaults.
    after = lorarljob(namespace, "after")
    assert p.api.create(after)["spec"]["extra"] == {"a": 1}
    wait(p, after, "Running")
    # The old one loses a pod.
    pods.evict(p.api, p.pods(namespace, "before-1", pods.WORKER)[0])
    p.api.wait(
        "LoRARLJob",
        "before",
        namespace,
        lambda job: job["status"]["rayJobName"] == "before-2" and phase(job) == "Running",
        seconds=SECONDS,
    )
    # An older trainer can read both.
    for job in (running, after):
        assert "beams" not in config(p, job)
        assert "extra" not in config(p, job)


def test_a_new_field_that_someone_set_is_not_ignored(p: Platform, running: Object, newer: None) -> None:
    namespace, numbers = running["metadata"]["namespace"], itertools.count(1)

    def refused() -> Object | None:
        job = judged(p, lorarljob(namespace, f"wants-{next(numbers)}", rollout={"beams": 4}))
        return job if is_invalid(job) else None

    # A watch from before the upgrade leaves new fields out, until the API server ends it.
    job = until(60, "a job with a new field is refused", refused)
    waits = condition(job, "Running")
    assert "spec.rollout.beams: got an unknown key" in waits["message"]
    assert "upgrade the operator" in waits["message"]


def test_a_job_keeps_its_trainer_image(p: Platform, running: Object) -> None:
    namespace = running["metadata"]["namespace"]
    assert running["status"]["trainerImage"] == "test.invalid/runs:1"
    assert json.loads(config(p, running))["spec"].keys() == {
        "model",
        "adapter",
        "algorithm",
        "data",
        "trainer",
        "checkpoint",
    }
    p.cluster.must("delete", "lrj", "before", "-n", namespace)
