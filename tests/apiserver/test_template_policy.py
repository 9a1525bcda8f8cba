"""Jobs that take from a template what the chart's policy refuses, with the real API server and KubeRay."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from support.cluster.audit import account
from support.cluster.client import ApiError, Object
from support.cluster.lorarljobs import condition, lorarljob, phase, template
from support.cluster.operator import ACCOUNT, SYSTEM, Operator
from support.cluster.platform import Platform
from support.cluster.processes import until
from support.cluster.sweeps import lorarlsweep
from support.helm import only, rendered

OVERRIDES = {"podTemplateOverrides": {"worker": {"spec": {"hostname": "any"}}}}
OF_ENGINES = {"podTemplateOverrides": {"engine": {"spec": {"hostname": "any"}}}}
OF_METADATA = {"podTemplateOverrides": {"worker": {"metadata": {"annotations": {"a": "b"}}}}}
VALUES = {
    "jobPolicy.enabled": True,
    "jobPolicy.namespaceSelector": {"matchLabels": {"tenants": "yes"}},
    "jobPolicy.images": ["test.invalid/"],
    "jobPolicy.serviceAccounts": ["trainer"],
    "jobPolicy.podTemplateOverrides": False,
}


@pytest.fixture(scope="module")
def tenants(kuberay_platform: Platform, replica: Operator) -> Iterator[str]:
    """A namespace under the policy, which is in force. The templates of the cluster are older than it."""
    p, namespace = kuberay_platform, kuberay_platform.namespace("tenants")
    p.api.patch("Namespace", namespace, {"metadata": {"labels": {"tenants": "yes"}}})
    p.api.create(template(None, "others", cluster={"serviceAccountName": "admin"}))
    p.api.create(template(None, "platform", cluster=OVERRIDES))
    p.api.create(template(namespace, "older", cluster={"image": "docker.io/any"}))
    made = rendered(VALUES, namespace=SYSTEM)
    of_chart, of_tests = only(made, "ServiceAccount")["metadata"]["name"], ACCOUNT
    policies = [
        json.loads(json.dumps(each).replace(f":{of_chart}", f":{of_tests}"))
        for each in made
        if each["metadata"]["name"].endswith("-jobs")
    ]
    assert account(SYSTEM, of_tests) in json.dumps(policies)
    for one in policies:
        p.cluster.must("apply", "-f", "-", stdin=json.dumps(one))

    def in_force() -> bool:
        try:
            p.api.create(template(namespace, "probe", cluster={"image": "docker.io/any"}))
        except ApiError as error:
            return "jobPolicy.images" in str(error)
        p.api.delete("LoRARLJobTemplate", "probe", namespace)
        return False

    until(20, "the policy is in force", in_force)
    yield namespace
    for one in policies:
        p.cluster.must("delete", one["kind"], one["metadata"]["name"])
    for name in ("others", "platform"):
        p.api.delete("ClusterLoRARLJobTemplate", name)


def refused(p: Platform, namespace: str, name: str) -> str:
    """What the job says while it waits; no attempt of it exists."""
    job = p.api.wait(
        "LoRARLJob", name, namespace, lambda one: condition(one, "Running").get("reason") == "TemplateBreaksPolicy"
    )
    assert (phase(job), p.api.get("RayJob", f"{name}-1", namespace)) == ("Pending", None)
    return str(condition(job, "Running")["message"])


def of_cluster(name: str) -> Object:
    return {"kind": "ClusterLoRARLJobTemplate", "name": name}


def test_a_template_of_the_cluster_is_no_way_around_the_policy(kuberay_platform: Platform, tenants: str) -> None:
    p = kuberay_platform
    p.api.create(lorarljob(tenants, "bold", templateRef=of_cluster("others")))
    told = refused(p, tenants, "bold")
    assert told.startswith(
        "The job with the values of ClusterLoRARLJobTemplate others is refused: spec.cluster.serviceAccountName must be"
    ), told
    elsewhere = p.namespace("not-tenants")
    p.api.create(lorarljob(elsewhere, "trusted", templateRef=of_cluster("others")))
    p.api.wait("RayJob", "trusted-1", elsewhere, bool, seconds=30)
    # The job can be corrected, and then starts.
    p.api.patch("LoRARLJob", "bold", {"spec": {"templateRef": None}}, tenants)
    p.wait_running(tenants, "bold-1", seconds=60)


@pytest.mark.long
def test_a_template_from_before_the_policy_is_none_either(kuberay_platform: Platform, tenants: str) -> None:
    p = kuberay_platform
    p.api.create(lorarljob(tenants, "late", templateRef={"name": "older"}))
    assert "LoRARLJobTemplate older is refused: spec.cluster.image" in refused(p, tenants, "late")
    p.api.patch("LoRARLJobTemplate", "older", {"spec": {"cluster": {"image": "test.invalid/runs:1"}}}, tenants)
    p.wait_running(tenants, "late-1", seconds=60)


def test_a_sweep_is_no_way_around_the_policy(kuberay_platform: Platform, tenants: str) -> None:
    """The operator creates its jobs, and of the operator's own requests the policy allows more."""
    p = kuberay_platform
    p.api.create(lorarlsweep(tenants, "sums", over=[{"path": "spec.cluster", "values": [OVERRIDES]}]))
    found = p.api.wait(
        "LoRARLSweep", "sums", tenants, lambda sweep: condition(sweep, "Stalled").get("reason") == "TrialsWait"
    )
    (trial,) = found["status"]["trials"]
    assert trial["phase"] == "Waiting" and "jobPolicy.podTemplateOverrides" in trial["message"]
    assert not p.api.list("LoRARLJob", tenants, labels="lorarl.io/sweep=sums")


def test_the_platforms_own_overrides_stay_allowed(kuberay_platform: Platform, tenants: str) -> None:
    p = kuberay_platform
    for cluster in (OVERRIDES, OF_ENGINES, OF_METADATA):
        with pytest.raises(ApiError, match=r"jobPolicy\.podTemplateOverrides"):
            p.api.create(template(tenants, "mine", cluster=cluster))
    with pytest.raises(ApiError, match=r"jobPolicy\.podTemplateOverrides"):
        p.api.create(lorarljob(tenants, "mine", cluster=OVERRIDES))
    p.api.create(lorarljob(tenants, "given", templateRef=of_cluster("platform")))
    p.wait_running(tenants, "given-1", seconds=60)
