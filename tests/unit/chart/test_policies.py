"""The chart's policies: who may reach which pods, and what the API server refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from lorarl_api.v1alpha1.pods import PodTemplateOverrides
from lorarl_operator.decide.status import FIELDS
from support.helm import of, only, rendered
from unit.chart.test_objects import arguments

REWARDS = ("reward", "rewards[]", "data.evals[].reward")


def test_the_network_policy_allows_metrics_and_the_set_egress() -> None:
    spec = only(rendered(), "NetworkPolicy")["spec"]
    assert spec["policyTypes"] == ["Ingress"]
    assert spec["ingress"] == [{"ports": [{"port": "metrics", "protocol": "TCP"}], "from": [{"namespaceSelector": {}}]}]
    made = rendered(
        {
            "networkPolicy.metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
            "networkPolicy.egress": {"enabled": True, "apiServerPorts": [6443], "apiServerCIDRs": ["10.0.0.1/32"]},
        }
    )
    spec = only(made, "NetworkPolicy")["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    monitoring, test = spec["ingress"][0]["from"]
    assert monitoring == {"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}
    assert test["podSelector"]["matchLabels"].items() <= only(made, "Pod")["metadata"]["labels"].items()
    dns, server = spec["egress"]
    assert {one["port"] for one in dns["ports"]} == {53}
    assert server == {"ports": [{"port": 6443, "protocol": "TCP"}], "to": [{"ipBlock": {"cidr": "10.0.0.1/32"}}]}
    assert of(rendered({"networkPolicy.enabled": False}), "NetworkPolicy") == []


def test_the_operator_learns_what_the_policies_of_jobs_allow() -> None:
    def given(values: dict[str, Any]) -> str:
        (flag,) = arguments(rendered(values))["--job-network-policy"]
        return flag

    assert json.loads(given({})) == {"from": []}
    assert given({"jobNetworkPolicy.enabled": False}) == ""
    monitoring = {"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}
    values = {"jobNetworkPolicy.from": [monitoring], "jobNetworkPolicy.egress.enabled": True}
    access = json.loads(given(values))
    assert access["from"] == [monitoring]
    assert {port["port"] for rule in access["egress"] for port in rule["ports"]} == {443, 6443}


def test_only_an_operator_of_the_whole_cluster_has_an_admission_policy() -> None:
    """A release without cluster-wide rights could not create it, and Roles limit that operator anyway."""
    made = rendered({"crds.refuseOlder": False}, namespace="ml")
    account = f"system:serviceaccount:ml:{only(made, 'ServiceAccount')['metadata']['name']}"
    policies = of(made, "ValidatingAdmissionPolicy")
    bound = {one["spec"]["policyName"] for one in of(made, "ValidatingAdmissionPolicyBinding")}
    assert bound == {policy["metadata"]["name"] for policy in policies}
    assert len(bound) == 2
    for policy in policies:
        (condition,) = policy["spec"]["matchConditions"]
        assert account in condition["expression"]
    kinds = {one["kind"] for one in rendered({"watchNamespaces": ["team"], "crds.install": False})}
    assert not kinds & {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}


def test_the_policy_for_jobs_knows_each_pod_that_a_job_can_override() -> None:
    """One that is left out is a way around the whole policy. A case in apiserver/test_job_policy.py shows that."""
    policies = of(rendered({"jobPolicy.enabled": True}), "ValidatingAdmissionPolicy")
    [spec] = [one["spec"] for one in policies if one["metadata"]["name"].endswith("-jobs")]
    [overrides] = [one["expression"] for one in spec["variables"] if one["name"] == "overrides"]
    named = re.findall(r"podTemplateOverrides\.\?(\w+)\.\?spec\b", overrides)
    assert sorted(named) == sorted(field.alias or name for name, field in PodTemplateOverrides.model_fields.items())


def test_the_policy_for_jobs_knows_each_secret_that_a_job_can_name() -> None:
    """A new field of this name needs a line in templates/jobpolicy.yaml, and a case in apiserver/test_job_policy.py."""
    crd = only(rendered(), "CustomResourceDefinition", "lorarljobs.lorarl.io")
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert set(secrets("spec", spec)) == {
        *(f"spec.{part}.credentialsSecret" for part in ("model", "data", "checkpoint")),
        *(f"spec.tracking.{tracker}.credentialsSecret" for tracker in ("wandb", "mlflow")),
        *(f"spec.{part}.{each}.credentialsSecret" for part in REWARDS for each in ("source", "server")),
        "spec.environment.source.credentialsSecret",
        "spec.rollout.credentialsSecret",
        "spec.algorithm.distillation.server.credentialsSecret",
        "spec.publish[].aibrix.credentialsSecret",
    }


def secrets(path: str, schema: Any) -> Iterator[str]:
    """The paths of a schema's fields that name Secrets."""
    for name, inner in schema.get("properties", {}).items():
        if name == "credentialsSecret":
            yield f"{path}.{name}"
        yield from secrets(f"{path}.{name}", inner)
    if "items" in schema:
        yield from secrets(f"{path}[]", schema["items"])


def test_pods_may_not_write_any_of_the_operators_status_fields() -> None:
    policies = of(rendered(), "ValidatingAdmissionPolicy")
    (policy,) = (one for one in policies if one["metadata"]["name"].endswith("-status"))
    guarded = [one["expression"] for one in policy["spec"]["validations"]]
    names = (*FIELDS, "published")
    assert guarded == [f"object.?status.?{name} == oldObject.?status.?{name}" for name in names]


def test_the_crds_are_guarded_by_the_release_that_installs_them() -> None:
    def guards(values: dict[str, Any]) -> list[str]:
        policies = of(rendered(values), "ValidatingAdmissionPolicy")
        return [one["metadata"]["name"] for one in policies if one["metadata"]["name"].endswith("-crds")]

    assert guards({}) == guards({"watchNamespaces": ["team"]}) == ["lorarl-system.lorarl-crds"]
    assert guards({"crds.install": False}) == guards({"crds.refuseOlder": False}) == []
    policies = of(rendered(), "ValidatingAdmissionPolicy")
    (guard,) = (one for one in policies if one["metadata"]["name"].endswith("-crds"))
    (rule,) = guard["spec"]["matchConstraints"]["resourceRules"]
    assert sorted(rule["resourceNames"]) == sorted(
        one["metadata"]["name"] for one in of(rendered(), "CustomResourceDefinition")
    )
