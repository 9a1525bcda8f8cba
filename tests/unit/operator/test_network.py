"""Who may reach a job's pods, and what they may reach."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from lorarl_operator.decide import parse
from lorarl_operator.decide.settings import NetworkAccess, Settings
from lorarl_operator.decide.valid_spec import checked_spec
from lorarl_operator.main import main as operator_command
from lorarl_operator.manifests.access import needs
from lorarl_operator.manifests.cleanup import CLEANUP, cleanup_job
from lorarl_operator.manifests.network import network_policy
from unit.operator.built import built, head, workers
from unit.operator.observed_world import SETTINGS, START, raw_job

JOB = parse.job(raw_job())
OWN = {"podSelector": {"matchLabels": {"lorarl.io/job-uid": "job-uid"}}}
KUBERAY = {"app.kubernetes.io/component": "kuberay-operator"}


def test_a_jobs_pods_reach_each_other_and_kuberay_reaches_the_dashboard() -> None:
    policy = network_policy(JOB, NetworkAccess())
    own, kuberay = policy["spec"]["ingress"]
    assert policy["spec"]["podSelector"] == OWN["podSelector"]
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    assert own == {"from": [OWN]}, "on any port: workers and NCCL choose theirs"
    assert kuberay["ports"] == [{"port": 8265, "protocol": "TCP"}]
    assert kuberay["from"] == [{"namespaceSelector": {}, "podSelector": {"matchLabels": KUBERAY}}]
    assert policy["metadata"]["ownerReferences"][0]["uid"] == "job-uid"


def test_kuberays_label_in_another_namespace_opens_no_dashboard() -> None:
    _, kuberay = network_policy(JOB, NetworkAccess(kuberay_namespace="kuberay-system"))["spec"]["ingress"]
    there = {"matchLabels": {"kubernetes.io/metadata.name": "kuberay-system"}}
    assert kuberay["from"] == [{"namespaceSelector": there, "podSelector": {"matchLabels": KUBERAY}}]


def test_each_pod_of_a_job_has_the_label_that_the_policy_selects() -> None:
    rayjob = built({"cluster": {"submissionMode": "K8sJobMode"}})
    templates = [head(rayjob), workers(rayjob)["template"], rayjob["spec"]["submitterPodTemplate"]]
    cleanup = cleanup_job(JOB, checked_spec(JOB), SETTINGS, START, 60)["spec"]["template"]
    assert cleanup["metadata"]["labels"]["lorarl.io/role"] == CLEANUP
    for template in (*templates, cleanup):
        assert OWN["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()


def test_an_installation_allows_more_sources_and_restricts_what_is_reached() -> None:
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    https = {"ports": [{"port": 443, "protocol": "TCP"}]}
    spec = network_policy(JOB, NetworkAccess((monitoring,), (https,)))["spec"]
    assert spec["ingress"][0] == {"from": [OWN, monitoring]}
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    own, dns, further = spec["egress"]
    assert own == {"to": [OWN]}
    assert {each["port"] for each in dns["ports"]} == {53}
    assert further == https
    assert network_policy(JOB, NetworkAccess(egress=()))["spec"]["egress"] == [own, dns]


def test_a_cluster_with_other_policies_gets_none() -> None:
    def kinds(settings: Settings) -> set[str]:
        return {each["kind"] for each in needs(JOB, checked_spec(JOB).cluster, settings)}

    assert kinds(SETTINGS) - kinds(Settings("any", job_network_policy=None)) == {"NetworkPolicy"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", None),
        ("{}", NetworkAccess()),
        ('{"from": [{"podSelector": {}}], "egress": []}', NetworkAccess(({"podSelector": {}},), ())),
        ('{"kuberayNamespace": "kuberay-system"}', NetworkAccess(kuberay_namespace="kuberay-system")),
    ],
)
def test_the_operators_flag(given: str, expected: NetworkAccess | None) -> None:
    arguments = ["--trainer-image=x", "--lease-namespace=x", f"--job-network-policy={given}"]
    assert operator_command.make_context("lorarl-operator", arguments).params["job_network_policy"] == expected


@pytest.mark.parametrize(
    "given", ["[]", "{", '{"to": []}', '{"egress": {}}', '{"from": ["all"]}', '{"kuberayNamespace": {}}']
)
def test_a_bad_flag_is_explained(given: str) -> None:
    arguments = ["--trainer-image=x", "--lease-namespace=x", f"--job-network-policy={given}"]
    done = CliRunner().invoke(operator_command, arguments)
    assert done.exit_code == 2
    assert "--job-network-policy" in done.output
    assert '{"from": [], "egress": []}' in " ".join(done.output.split())
