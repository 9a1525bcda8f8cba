"""If a job does not run, `kubectl describe` says within 30 s what is wrong, where, and what to do."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from support.cluster import pods
from support.cluster.client import ApiError, Object
from support.cluster.kwok import CANNOT_BE_PULLED, ENDS_AT_ONCE, HELD
from support.cluster.lorarljobs import condition, events, lorarljob
from support.cluster.operator import Operator
from support.cluster.platform import Platform
from support.cluster.processes import PATIENCE, until

CRD = "lorarljobs.lorarl.io"
SECONDS = 30.0


@dataclass(frozen=True)
class Case:
    """A job that cannot run: its spec, its reason and message, and the preparation of its namespace."""

    reason: str
    says: tuple[str, ...]
    cluster: Object
    prepare: Callable[[Platform, str], None] | None = None


def quota(hard: dict[str, str]) -> Callable[[Platform, str], None]:
    """A namespace with a ResourceQuota."""

    def prepare(p: Platform, namespace: str) -> None:
        p.api.create(
            {
                "apiVersion": "v1",
                "kind": "ResourceQuota",
                "metadata": {"name": "little", "namespace": namespace},
                "spec": {"hard": hard},
            }
        )
        p.api.wait(
            "ResourceQuota",
            "little",
            namespace,
            lambda one: hard.keys() <= one.get("status", {}).get("used", {}).keys(),
        )

    return prepare


def restricted(p: Platform, namespace: str) -> None:
    """A namespace that enforces the restricted pod security standard."""
    p.api.patch("Namespace", namespace, {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}})


CASES = {
    "no-gpus": Case(
        "Unschedulable", ("Insufficient nvidia.com/gpu", "Free or add such nodes", "gpusPerNode"), {"gpusPerNode": 64}
    ),
    "no-image": Case(
        "ImagePull",
        ("pod no-image-1-", "ImagePull", "Correct cluster.image", "imagePullSecrets"),
        {"image": CANNOT_BE_PULLED},
    ),
    "no-secret": Case(
        "SecretMissing",
        ("Secret s3-keys does not exist in namespace", "Create it, and the job continues"),
        {"image": HELD},
    ),
    "no-account": Case(
        "ServiceAccountMissing",
        ("ServiceAccount no-one does not exist in namespace", "Create it, or remove cluster.serviceAccountName"),
        {"serviceAccountName": "no-one"},
    ),
    "no-priority": Case(
        "PodRefused", ("no PriorityClass with name nothing was found",), {"priorityClassName": "nothing"}
    ),
    "no-quota": Case("QuotaExceeded", ("exceeded quota: little", "kubectl describe quota"), {}, quota({"pods": "1"})),
    "no-objects": Case(
        "QuotaExceeded", ("ServiceAccount lorarl-no-objects exceeds",), {}, quota({"count/serviceaccounts": "1"})
    ),
    "not-valid": Case(
        "RayJobRefused",
        ("KubeRay refuses RayJob not-valid-1", "restartPolicy for head Pod should be Never", "podTemplateOverrides"),
        {"podTemplateOverrides": {"head": {"spec": {"restartPolicy": "Always"}}}},
    ),
    "not-known": Case(
        "RayJobRefused",
        ("The API server refuses RayJob not-known-1", "nodeNme", "podTemplateOverrides"),
        {"podTemplateOverrides": {"head": {"spec": {"nodeNme": "x"}}}},
    ),
    "sidecar": Case(
        "PodRefused", ('violates PodSecurity "restricted', "set cluster.submissionMode to K8sJobMode"), {}, restricted
    ),
    "crash": Case(
        "HeadExited",
        ("Attempt 1 failed", "Ray's container of the head pod", "exited by itself with code 1"),
        {"image": ENDS_AT_ONCE},
    ),
}


@pytest.fixture(scope="module")
def explained(kuberay_platform: Platform, replica: Operator) -> dict[str, tuple[str, str]]:
    """Each case's reason, and the output of `kubectl describe` as soon as status and Events have the reason.

    All jobs run at the same time.
    """
    p = kuberay_platform
    namespaces = {}
    for name, case in CASES.items():
        namespaces[name] = p.namespace(name)
        if case.prepare:
            case.prepare(p, namespaces[name])
    for name, case in CASES.items():
        checkpoint = (
            {"uri": "s3://team/adapters", "credentialsSecret": "s3-keys"}
            if name == "no-secret"
            else {"uri": "s3://team/adapters"}
        )
        p.api.create(lorarljob(namespaces[name], name, cluster=case.cluster, checkpoint=checkpoint, backoffLimit=0))
    deadline = time.monotonic() + PATIENCE * SECONDS
    # kwok's pods have no kubelet, so the test writes its Event about the missing Secret.
    heads = until(
        15, "a head that waits for its Secret", lambda: p.pods(namespaces["no-secret"], "no-secret-1", pods.HEAD)
    )
    pods.post_event(
        p.api, heads[0], "FailedMount", 'MountVolume.SetUp failed for volume "secret-0" : secret "s3-keys" not found'
    )

    found: dict[str, tuple[str, str]] = {}
    while len(found) < len(CASES) and time.monotonic() < deadline:
        for job in p.api.list("LoRARLJob"):
            name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
            if namespaces.get(name) == namespace and name not in found:
                reasons = (condition(job, "Running").get("reason"), condition(job, "Failed").get("reason"))
                recorded = {event["reason"] for event in events(p.api, namespace, name)}
                if CASES[name].reason in reasons and CASES[name].reason in recorded:
                    found[name] = (CASES[name].reason, p.cluster.must("describe", "lrj", name, "-n", namespace))
        time.sleep(0.2)
    for name, namespace in namespaces.items():
        if name not in found:
            found[name] = ("not in time", p.cluster.must("describe", "lrj", name, "-n", namespace))
        p.api.delete("LoRARLJob", name, namespace)
    return found


@pytest.mark.parametrize("name", CASES)
def test_it_is_explained(explained: dict[str, tuple[str, str]], name: str) -> None:
    reason, described = explained[name]
    assert reason == CASES[name].reason, described
    for part in CASES[name].says:
        assert part in described
    assert "Phase:" in described
    events = described.partition("Events:")[2]
    assert reason in events, described


def test_a_spec_that_an_older_definition_admitted(kuberay_platform: Platform, replica: Operator) -> None:
    """A definition without today's rules admitted it, and was then replaced by today's."""
    p = kuberay_platform
    namespace = p.namespace("older")
    today = p.api.get("CustomResourceDefinition", CRD)
    assert today is not None
    older = json.loads(json.dumps(today))
    strip(older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"])
    manifest = lorarljob(namespace, "relic", trainer={"steps": 0, "warmupSteps": 5})
    versions = older["spec"]["versions"]
    p.api.patch("CustomResourceDefinition", CRD, {"spec": {"versions": versions}})
    try:
        until(20, "the older definition is served", lambda: created(p, manifest))
    finally:
        p.api.patch("CustomResourceDefinition", CRD, {"spec": {"versions": today["spec"]["versions"]}})
    job = p.api.wait(
        "LoRARLJob",
        "relic",
        namespace,
        lambda job: condition(job, "Running").get("reason") == "Invalid",
        seconds=SECONDS,
    )
    assert "spec.trainer.steps" in condition(job, "Running")["message"]
    assert job["status"]["phase"] == "Pending"
    until(
        20,
        "today's definition is served",
        lambda: not created(p, {**manifest, "metadata": {"name": "new", "namespace": namespace}}),
    )
    # Its status can still be written, and it can be deleted.
    p.api.patch("LoRARLJob", "relic", {"spec": {"suspend": True}}, namespace)
    p.api.wait("LoRARLJob", "relic", namespace, lambda job: job["status"]["phase"] == "Suspended")
    p.api.delete("LoRARLJob", "relic", namespace)
    p.api.wait_gone("LoRARLJob", "relic", namespace)


def strip(schema: Object) -> None:
    """Remove all rules and limits from a schema."""
    for key in (
        "x-kubernetes-validations",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "pattern",
        "required",
        "maxItems",
        "minItems",
    ):
        if key in schema and not isinstance(schema[key], dict):
            del schema[key]
    for part in (*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")):
        if isinstance(part, dict):
            strip(part)


def created(p: Platform, manifest: Object) -> bool:
    try:
        p.api.create(manifest)
    except ApiError as error:
        assert error.status in (422, 409), error
        return error.status == 409
    return True


def test_with_restricted_enforced_the_other_submission_modes_pass(
    kuberay_platform: Platform, replica: Operator
) -> None:
    p = kuberay_platform
    namespace = p.namespace("restricted")
    restricted(p, namespace)
    for name, mode in (("by-job", "K8sJobMode"), ("by-http", "HTTPMode")):
        p.api.create(lorarljob(namespace, name, cluster={"submissionMode": mode}))
    for name in ("by-job", "by-http"):
        until(20, f"head and worker of {name}", lambda name=name: len(p.pods(namespace, f"{name}-1")) == 2)
    submitter = until(20, "the submitter's pod", lambda: p.api.list("Pod", namespace, labels="job-name=by-job-1"))
    assert submitter[0]["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] is False
    p.cluster.must("delete", "lrj", "--all", "-n", namespace)
