"""Jobs that name a template, with the real API server and KubeRay: what pods get, and what jobs may not change."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.cluster.audit import account, writes
from support.cluster.client import ApiError, Object
from support.cluster.lorarljobs import condition, lorarljob, phase, template
from support.cluster.operator import ACCOUNT, SYSTEM, Operator
from support.cluster.platform import Platform

OPERATOR = account(SYSTEM, ACCOUNT)
POOL: dict[str, Any] = {
    "labels": {"example.com/cost-centre": "research"},
    "cluster": {
        "env": {"HTTPS_PROXY": "http://proxy.example.com:3128"},
        "imagePullSecrets": ["registry"],
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "podTemplateOverrides": {"head": {"metadata": {"annotations": {"example.com/from": "pool"}}}},
    },
    "locked": ["cluster.imagePullSecrets", "labels"],
}


@pytest.fixture(scope="module")
def p(kuberay_platform: Platform) -> Platform:
    return kuberay_platform


def reason(job: Object) -> str:
    return str(condition(job, "Running").get("reason", ""))


def templates_of(rayjob: Object) -> list[Object]:
    """The pod templates of head and workers."""
    spec = rayjob["spec"]["rayClusterSpec"]
    return [spec["headGroupSpec"]["template"], spec["workerGroupSpecs"][0]["template"]]


def test_pods_get_the_values_without_a_further_write_and_keep_them(p: Platform, replica: Operator) -> None:
    namespace = p.namespace("pool")
    stored = p.api.create(template(namespace, "pool", **POOL))
    assert stored["spec"]["cluster"] == POOL["cluster"], "the API server fills nothing in but entries of lists"
    p.api.create(lorarljob(namespace, "own"))
    p.api.create(lorarljob(namespace, "given", templateRef={"name": "pool"}))
    for name in ("own", "given"):
        p.wait_running(namespace, f"{name}-1", seconds=60)
        p.api.wait("LoRARLJob", name, namespace, lambda job: phase(job) == "Running", seconds=30)
    rayjob = p.api.get("RayJob", "given-1", namespace)
    assert rayjob is not None
    for pod in templates_of(rayjob):
        env = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
        assert env["HTTPS_PROXY"] == "http://proxy.example.com:3128"
        assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
        assert pod["metadata"]["labels"]["example.com/cost-centre"] == "research"
    assert templates_of(rayjob)[0]["metadata"]["annotations"]["example.com/from"] == "pool"
    # How often the status changes depends on which states of the RayJob the operator saw on the way.
    written = [one for one in writes(p.cluster.audit_log, OPERATOR, namespace) if "/status" not in one]
    each = {name: sorted(one.replace(name, "") for one in written if name in one) for name in ("own", "given")}
    assert each["given"] == each["own"]

    p.api.patch("LoRARLJobTemplate", "pool", {"spec": {"cluster": {"imagePullSecrets": ["other"]}}}, namespace)
    p.api.patch("LoRARLJob", "given", {"spec": {"trainer": {"steps": 20}}}, namespace)
    p.api.wait("ConfigMap", "lorarl-given", namespace, lambda one: '"steps": 20' in one["data"]["job.yaml"], seconds=20)
    assert p.api.get("RayJob", "given-1", namespace) is not None
    p.api.patch("LoRARLJob", "given", {"spec": {"suspend": True}}, namespace)
    p.api.wait("LoRARLJob", "given", namespace, lambda job: phase(job) == "Suspended", seconds=30)
    p.api.patch("LoRARLJob", "given", {"spec": {"suspend": False}}, namespace)
    changed = p.api.wait("RayJob", "given-2", namespace, bool, seconds=30)
    assert [pod["spec"]["imagePullSecrets"] for pod in templates_of(changed)] == [[{"name": "other"}]] * 2


def test_a_job_waits_for_its_template_and_starts_by_itself(p: Platform, replica: Operator) -> None:
    namespace = p.namespace("later")
    p.api.create(lorarljob(namespace, "early", templateRef={"name": "pool"}))
    job = p.api.wait("LoRARLJob", "early", namespace, lambda job: reason(job) == "TemplateMissing")
    message = condition(job, "Running")["message"]
    assert message == "LoRARLJobTemplate pool does not exist. Create it, or correct spec.templateRef."
    assert (phase(job), p.api.get("RayJob", "early-1", namespace)) == ("Pending", None)
    p.api.create(template(namespace, "pool", **POOL))
    # The operator looks again after 30 s, and at any change of the job.
    p.api.patch("LoRARLJob", "early", {"metadata": {"labels": {"example.com/look": "again"}}}, namespace)
    p.wait_running(namespace, "early-1", seconds=60)


def test_a_job_that_sets_a_locked_field_says_so_and_can_be_corrected(p: Platform, replica: Operator) -> None:
    namespace, ref = p.namespace("locked"), {"kind": "ClusterLoRARLJobTemplate", "name": "site"}
    p.api.create(template(None, "site", **POOL))
    p.api.create(lorarljob(namespace, "bold", templateRef=ref, cluster={"imagePullSecrets": ["mine"]}))
    job = p.api.wait("LoRARLJob", "bold", namespace, lambda job: reason(job) == "TemplateForbids")
    assert condition(job, "Running")["message"] == (
        "spec.cluster.imagePullSecrets: got a list with 1 entry, must keep the value of ClusterLoRARLJobTemplate site, "
        "which locks it. Remove it, or ask who maintains the template."
    )
    p.api.patch("LoRARLJob", "bold", {"spec": {"cluster": {"imagePullSecrets": None}}}, namespace)
    p.wait_running(namespace, "bold-1", seconds=60)
    with pytest.raises(ApiError, match=r"spec.templateRef may change only while nothing runs"):
        p.api.patch("LoRARLJob", "bold", {"spec": {"templateRef": {"name": "other"}}}, namespace)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"locked": ["cluster.imge"]}, r"spec\.locked\[0\]: Unsupported value: \\?\"cluster\.imge"),
        ({"cluster": {"tolerations": [{"key": "a", "operator": "Some"}]}}, "Unsupported value"),
        ({"cluster": {"env": {"A": 1}}}, "must be of type string"),
    ],
)
def test_the_api_server_refuses_what_no_template_can_have(p: Platform, spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError, match=message):
        p.api.create(template("default", "bad", **spec))
    unknown = json.dumps(template("default", "bad", rollout={}))
    strict = p.cluster.kubectl("create", "--validate=strict", "-f", "-", stdin=unknown)
    assert 'unknown field "spec.rollout"' in strict.stderr
