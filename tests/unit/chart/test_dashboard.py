"""The team's page in the chart: off by default, restricted, and with no more rights than it uses."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import yaml

from lorarl_trainer.cli.dashboard import command
from lorarl_trainer.dashboard.cluster.site import HEALTH
from support.cluster import audit
from support.helm import CHART, Object, helm, of, only, rendered

NAME = "lorarl-dashboard"
ACCOUNT = "dashboard-lorarl"
ON: dict[str, Any] = {"dashboard.enabled": True}
RIGHTS = yaml.safe_load((CHART / "files/dashboard-rights.yaml").read_text())


def own(objects: list[Object]) -> list[Object]:
    return [one for one in objects if "dashboard" in one["metadata"]["name"]]


def pod(objects: list[Object]) -> Object:
    spec: Object = only(objects, "Deployment", NAME)["spec"]["template"]["spec"]
    return spec


def test_it_is_off_by_default_and_leaves_nothing() -> None:
    assert own(rendered()) == []
    kinds = sorted(one["kind"] for one in own(rendered(ON)))
    cluster = ["ClusterRole", "ClusterRoleBinding"]
    assert kinds == [*cluster, "Deployment", "NetworkPolicy", "Service", "ServiceAccount"]


def test_it_may_read_jobs_and_ask_who_may_see_them() -> None:
    made = own(rendered(ON))
    assert only(made, "ClusterRole")["rules"] == RIGHTS["jobs"] + RIGHTS["reviews"]
    granted = {
        (resource, verb)
        for rules in RIGHTS.values()
        for rule in rules
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    reads = {("lorarljobs", verb) for verb in ("get", "list", "watch")}
    assert granted == reads | {("tokenreviews", "create"), ("subjectaccessreviews", "create")}
    (subject,) = only(made, "ClusterRoleBinding")["subjects"]
    assert (subject["name"], subject["namespace"]) == (ACCOUNT, "lorarl-system")
    assert pod(made)["serviceAccountName"] == only(made, "ServiceAccount")["metadata"]["name"] == ACCOUNT


def test_with_some_namespaces_it_reads_only_those() -> None:
    made = own(rendered(ON | {"watchNamespaces": ["team-a", "team-b"]}))
    assert only(made, "ClusterRole")["rules"] == RIGHTS["reviews"]
    installer = yaml.safe_load((CHART.parent / "installer-role.yaml").read_text())
    assert audit.granted(RIGHTS["jobs"]) <= audit.granted(installer["rules"]), "who installs may grant it"
    roles = {one["metadata"]["namespace"]: one["rules"] for one in of(made, "Role")}
    assert roles == {"team-a": RIGHTS["jobs"], "team-b": RIGHTS["jobs"]}
    assert {"--namespace=team-a", "--namespace=team-b"} <= set(pod(made)["containers"][0]["args"])


def test_its_pod_is_restricted() -> None:
    spec = pod(rendered(ON))
    operator = only(rendered(ON), "Deployment", "lorarl")["spec"]["template"]["spec"]
    assert spec["securityContext"] == operator["securityContext"]
    assert spec["containers"][0]["securityContext"] == operator["containers"][0]["securityContext"]
    assert spec["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
    assert [set(volume) for volume in spec["volumes"]] == [{"name", "emptyDir"}]


def test_it_runs_in_the_operators_image_unless_it_has_one() -> None:
    digest = "sha256:" + "0" * 64
    images = {"image.repository": "localhost:5000/operator", "image.digest": digest}
    assert pod(rendered(ON | images))["containers"][0]["image"] == f"localhost:5000/operator@{digest}"
    given = {"dashboard.image.repository": "localhost:5000/page", "dashboard.image.tag": "7"}
    assert pod(rendered(ON | images | given))["containers"][0]["image"] == "localhost:5000/page:7"


def test_the_command_takes_its_arguments() -> None:
    values = ON | {"watchNamespaces": ["team"], "dashboard.stores": ["s3://team/adapters"]}
    (container,) = pod(rendered(values))["containers"]
    assert container["command"] == ["lorarl", "dashboard"]
    parsed = command.make_context("dashboard", list(container["args"])).params
    assert (
        parsed["cluster"] is True and parsed["namespaces"] == ("team",) and parsed["places"] == ("s3://team/adapters",)
    )
    assert {parsed["port"]} == {one["containerPort"] for one in container["ports"]}
    assert parsed["host"] == "0.0.0.0"


def test_what_reaches_what_agrees() -> None:
    made = rendered(ON | {"dashboard.service.port": 8080})
    template = only(made, "Deployment", NAME)["spec"]["template"]
    (container,) = template["spec"]["containers"]
    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {"path": HEALTH, "port": "http"}
    service = only(made, "Service", NAME)["spec"]
    assert [(one["port"], one["targetPort"]) for one in service["ports"]] == [(8080, "http")]
    policy = only(made, "NetworkPolicy", ACCOUNT)["spec"]
    operator = only(made, "Deployment", "lorarl")["spec"]["template"]["metadata"]["labels"]
    for selector in (service["selector"], policy["podSelector"]["matchLabels"]):
        assert selector.items() <= template["metadata"]["labels"].items()
        assert not selector.items() <= operator.items(), "the operator is not the page"
    assert (
        not only(made, "Service", "lorarl-metrics")["spec"]["selector"].items()
        <= template["metadata"]["labels"].items()
    )


def test_the_network_policy_lets_readers_in_and_reaches_the_stores() -> None:
    policy = only(rendered(ON), "NetworkPolicy", ACCOUNT)["spec"]
    assert policy["ingress"] == [{"ports": [{"port": "http", "protocol": "TCP"}], "from": [{"namespaceSelector": {}}]}]
    ingress = {"namespaceSelector": {"matchLabels": {"name": "ingress"}}}
    stores = {"ports": [{"port": 443, "protocol": "TCP"}], "to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}]}
    values = {
        "networkPolicy.egress.enabled": True,
        "dashboard.networkPolicy.from": [ingress],
        "dashboard.networkPolicy.egressRules": [stores],
    }
    policy = only(rendered(ON | values), "NetworkPolicy", ACCOUNT)["spec"]
    assert policy["ingress"][0]["from"] == [ingress] and policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["egress"][-1] == stores and len(policy["egress"]) == 3
    assert not [one for one in own(rendered(ON | {"networkPolicy.enabled": False})) if one["kind"] == "NetworkPolicy"]


def test_the_stores_keys_come_from_a_secret_and_are_not_in_the_manifest() -> None:
    (container,) = pod(rendered(ON | {"dashboard.credentialsSecret": "s3-keys"}))["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "s3-keys"}}]
    assert "envFrom" not in pod(rendered(ON))["containers"][0]


@pytest.mark.parametrize("release", ["lorarl", "prod", "123"])
def test_names_stay_names_and_no_job_can_take_them(release: str) -> None:
    """The operator applies lorarl-<job>, and users choose the names of jobs."""
    values = ON | {"fullnameOverride": "true", "watchNamespaces": [release]}
    made = rendered(values, release=release, namespace=release)
    for one in made:
        assert type(one["metadata"]["name"]) is str and type(one["metadata"].get("namespace", "")) is str
    taken = [one["metadata"]["name"] for one in made if one["kind"] in ("ServiceAccount", "Role", "NetworkPolicy")]
    assert not [name for name in taken if name.startswith("lorarl-")]


def test_common_labels_and_where_pods_may_run_hold_for_it_too() -> None:
    values = {
        "commonLabels": {"cost-centre": "42"},
        "nodeSelector": {"pool": "system"},
        "imagePullSecrets": [{"name": "r"}],
    }
    made = rendered(ON | values)
    assert {one["metadata"]["labels"]["cost-centre"] for one in own(made)} == {"42"}
    assert pod(made)["nodeSelector"] == {"pool": "system"} and pod(made)["imagePullSecrets"] == [{"name": "r"}]


def test_the_command_of_the_docs_installs_it() -> None:
    text = (CHART.parents[1] / "docs/dashboard.md").read_text()
    (line,) = re.findall(
        r"^helm upgrade --install lorarl helm/lorarl (.*?)\n(?=kubectl)", text.replace("\\\n", " "), re.MULTILINE
    )
    flags = shlex.split(line.replace("--reset-then-reuse-values", ""))
    done = helm("template", "lorarl", str(CHART), *flags)
    assert done.returncode == 0, done.stderr
    made = [one for one in yaml.load_all(done.stdout, yaml.CSafeLoader) if one]
    (container,) = pod(made)["containers"]
    assert container["args"][-1] == "s3://team/adapters"
    assert container["envFrom"] == [{"secretRef": {"name": "s3-keys"}}]
    name, port = re.findall(r"service/(\S+) 8400:(\d+)", text)[0]
    assert only(made, "Service", name)["spec"]["ports"][0]["port"] == int(port)
