"""The objects that the chart creates."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from lorarl_api.v1alpha1 import TARGETS
from lorarl_operator.main import main as operator_command
from support.helm import CHART, Object, flags, helm, of, only, rendered

MONITORING = {f"metrics.{name}.enabled": True for name in ("serviceMonitor", "prometheusRule", "dashboard")}
RIGHTS = yaml.safe_load((CHART / "files/rights.yaml").read_text())
ALL_RULES = [rule for rules in RIGHTS.values() for rule in rules]
APPLIED_BY_THE_OPERATOR = ("ServiceAccount", "Role", "RoleBinding", "ConfigMap", "NetworkPolicy")


def pods(objects: list[Object]) -> list[Object]:
    """The specs of the pods: the operator's, and that of `helm test`."""
    return [only(objects, "Deployment")["spec"]["template"]["spec"], only(objects, "Pod")["spec"]]


def arguments(objects: list[Object]) -> dict[str, list[str]]:
    """The operator's flags."""
    found: dict[str, list[str]] = {}
    for one in only(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]:
        name, value = one.split("=", 1)
        found.setdefault(name, []).append(value)
    return found


def test_without_a_list_all_namespaces_are_served_by_a_clusterrole() -> None:
    made = rendered()
    (role,) = (one for one in of(made, "ClusterRole") if "aggregate" not in str(one["metadata"]["labels"]))
    assert role["rules"] == RIGHTS["jobs"] + RIGHTS["cluster"]
    (binding,) = of(made, "ClusterRoleBinding")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert [one["metadata"]["namespace"] for one in of(made, "Role")] == ["lorarl-system"]
    assert "--namespace" not in arguments(made)


def test_with_a_list_there_is_a_role_in_each_and_none_elsewhere() -> None:
    made = rendered({"watchNamespaces": ["team-a", "team-b"]})
    assert of(made, "ClusterRoleBinding") == []
    assert all("aggregate" in str(one["metadata"]["labels"]) for one in of(made, "ClusterRole"))
    rules = {one["metadata"]["namespace"]: one["rules"] for one in of(made, "Role")}
    assert rules == {"team-a": RIGHTS["jobs"], "team-b": RIGHTS["jobs"], "lorarl-system": RIGHTS["own"]}
    account = only(made, "ServiceAccount")["metadata"]
    for binding in of(made, "RoleBinding"):
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
        ]
        assert binding["metadata"]["name"] == binding["roleRef"]["name"]
    assert arguments(made)["--namespace"] == ["team-a", "team-b"]


@pytest.mark.parametrize("targets", [[one] for one in TARGETS] + [list(TARGETS)])
def test_rights_to_publish_are_given_only_if_asked_for(targets: list[str]) -> None:
    asked = {f"publish.{one}.enabled": True for one in targets}
    granted = [rule for one in targets for rule in RIGHTS[one]]
    (role,) = (one for one in of(rendered(asked), "ClusterRole") if "aggregate" not in str(one["metadata"]["labels"]))
    assert role["rules"] == RIGHTS["jobs"] + granted + RIGHTS["cluster"]
    made = of(rendered(asked | {"watchNamespaces": ["team"]}), "Role")
    rules = {one["metadata"]["namespace"]: one["rules"] for one in made}
    assert rules == {"team": RIGHTS["jobs"] + granted, "lorarl-system": RIGHTS["own"]}


def test_a_release_in_a_namespace_that_it_watches_has_both_roles() -> None:
    made = rendered({"watchNamespaces": ["lorarl-system"]})
    assert len({one["metadata"]["name"] for one in of(made, "Role")}) == 2


def test_no_permission_is_wider_than_needed() -> None:
    rules = ALL_RULES
    granted = {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert not [one for one in granted if "*" in one]
    (namespaces,) = (rule for rule in rules if "namespaces" in rule["resources"])
    assert (namespaces["resourceNames"], namespaces["verbs"]) == (["kube-system"], ["get"]), "its uid, and no other"
    assert {verb for _, resource, verb in granted if resource == "nodes"} == {"list"}, "which of them are cordoned"
    assert "nodes" not in {resource for rule in RIGHTS["jobs"] for resource in rule["resources"]}
    resources = {resource for _, resource, _ in granted}
    assert not resources & {
        "secrets",
        "pods/exec",
        "pods/attach",
        "pods/portforward",
        "clusterroles",
        "clusterrolebindings",
    }
    assert not {verb for _, _, verb in granted} & {"bind", "escalate", "impersonate", "deletecollection"}
    assert ("ray.io", "rayjobs", "patch") not in granted, "suspend, nodeSelector and tolerations are Kueue's"
    assert {verb for _, resource, verb in granted if resource == "pods"} == {"list", "watch", "delete"}
    guards = str(of(rendered(), "ValidatingAdmissionPolicy"))
    roles = '["head", "worker", "engine", "environment"]'
    assert f'labels[?"lorarl.io/role"].orValue("") in {roles}' in guards, "and of those only Ray's"


def test_users_get_their_permissions_from_the_clusters_own_roles() -> None:
    roles = {
        one["metadata"]["name"].rsplit("-", 1)[-1]: one
        for one in of(rendered(), "ClusterRole")
        if "aggregate" in str(one["metadata"])
    }
    prefix = "rbac.authorization.k8s.io/aggregate-to-"
    labels = {
        name: {key.removeprefix(prefix) for key in one["metadata"]["labels"] if key.startswith(prefix)}
        for name, one in roles.items()
    }
    assert labels == {"view": {"view", "edit", "admin"}, "edit": {"edit", "admin"}, "admin": {"admin"}}
    assert "template" not in str(roles["edit"]["rules"]), "who is limited by templates may not write them"
    verbs = {name: {verb for rule in one["rules"] for verb in rule["verbs"]} for name, one in roles.items()}
    assert verbs["view"] == {"get", "list", "watch"}
    assert not any("status" in resource for rule in roles["edit"]["rules"] for resource in rule["resources"]), (
        "users may not write the status"
    )
    assert not [
        one for one in of(rendered({"aggregatedRoles": False}), "ClusterRole") if "aggregate" in str(one["metadata"])
    ]


@pytest.mark.parametrize("release", ["lorarl", "lorarl-prod", "prod"])
def test_no_job_can_take_over_an_object_of_the_chart(release: str) -> None:
    """The operator applies lorarl-<job>, and users choose the names of jobs."""
    made = rendered({"watchNamespaces": ["team"], **MONITORING}, release=release)
    names = {one["metadata"]["name"] for one in made if one["kind"] in APPLIED_BY_THE_OPERATOR}
    assert names
    assert not [name for name in names if name.startswith("lorarl-")]


def test_each_pod_is_restricted() -> None:
    for spec in pods(rendered()):
        assert spec["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        assert all(set(volume) <= {"name", "emptyDir"} for volume in spec.get("volumes", []))
    for spec in pods(rendered({"runAsUser": None})):
        assert "runAsUser" not in spec["securityContext"], "the cluster chooses it"


def test_two_replicas_on_two_nodes_and_a_drain_evicts_one() -> None:
    made = rendered()
    deployment, budget = only(made, "Deployment"), only(made, "PodDisruptionBudget")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["replicas"] == 2
    assert budget["spec"]["maxUnavailable"] == 1
    (spread,) = deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway", "a cluster with one node runs both"
    for selector in (deployment["spec"]["selector"], budget["spec"]["selector"], spread["labelSelector"]):
        assert selector["matchLabels"].items() <= labels.items()
        assert selector["matchLabels"].items() > {("app.kubernetes.io/name", "lorarl")}
        assert not selector["matchLabels"].items() <= only(made, "Pod")["metadata"]["labels"].items(), (
            "the test's pod is not selected"
        )
    assert of(rendered({"replicas": 1}), "PodDisruptionBudget") == []
    assert of(rendered({"podDisruptionBudget": False}), "PodDisruptionBudget") == []


def test_a_spread_with_its_own_selector_keeps_it() -> None:
    own: dict[str, Any] = {
        "maxSkew": 1,
        "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"a": "b"}},
    }
    (made,) = only(rendered({"topologySpreadConstraints": [own]}), "Deployment")["spec"]["template"]["spec"][
        "topologySpreadConstraints"
    ]
    assert made == own


def test_images_are_named_by_tag_or_by_digest() -> None:
    digest = "sha256:" + "0" * 64
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    made = rendered()
    assert {spec["containers"][0]["image"] for spec in pods(made)} == {
        f"registry.example.com/lorarl/operator:{version}"
    }
    assert arguments(made)["--trainer-image"] == [f"registry.example.com/lorarl/trainer:{version}"]
    made = rendered(
        {"image.tag": "1", "trainerImage": {"repository": "localhost:5000/t", "digest": digest, "tag": "2"}}
    )
    assert {spec["containers"][0]["image"] for spec in pods(made)} == {"registry.example.com/lorarl/operator:1"}
    assert arguments(made)["--trainer-image"] == [f"localhost:5000/t@{digest}"]


def test_the_user_decides_where_the_pods_run() -> None:
    values: dict[str, Any] = {
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "priorityClassName": "system-cluster-critical",
    }
    made = rendered(
        {
            **values,
            "podLabels": {"team": "ml"},
            "podAnnotations": {"note": "x"},
            "extraEnv": [{"name": "HTTPS_PROXY", "value": "p"}],
        }
    )
    template = only(made, "Deployment")["spec"]["template"]
    assert {name: template["spec"][name] for name in values} == values
    assert template["metadata"]["labels"]["team"] == "ml"
    assert template["metadata"]["annotations"] == {"note": "x"}
    assert template["spec"]["containers"][0]["env"] == [{"name": "HTTPS_PROXY", "value": "p"}]
    assert only(made, "Pod")["spec"]["tolerations"] == values["tolerations"]


def test_ports_agree_everywhere() -> None:
    made = rendered({"metrics.port": 9000, "probesPort": 9001, **MONITORING})
    (container,) = only(made, "Deployment")["spec"]["template"]["spec"]["containers"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert ports == {"metrics": 9000, "probes": 9001}
    assert (arguments(made)["--metrics-port"], arguments(made)["--probes-port"]) == (["9000"], ["9001"])
    assert {container[probe]["httpGet"]["port"] for probe in ("livenessProbe", "readinessProbe")} == {"probes"}
    service = only(made, "Service")
    assert [(one["name"], one["port"], one["targetPort"]) for one in service["spec"]["ports"]] == [
        ("metrics", 9000, "metrics")
    ]
    assert only(made, "ServiceMonitor")["spec"]["endpoints"][0]["port"] == "metrics"
    assert only(made, "Pod")["spec"]["containers"][0]["args"][1:] == [service["metadata"]["name"], "9000"]


def test_the_operator_has_all_flags_of_the_chart() -> None:
    known = {name for option in operator_command.params for name in option.opts}
    assert set(arguments(rendered({"watchNamespaces": ["a"]}))) <= known


def test_the_operator_reads_the_documented_environment() -> None:
    text = (CHART.parents[1] / "docs/operator.md").read_text()
    documented = dict(re.findall(r"^\| `(LORARL_\w+)` \| `(\d+)` \|", text, re.MULTILINE))
    assert documented
    defaults = {f"LORARL_{str(option.name).upper()}": str(option.default) for option in operator_command.params}
    assert documented.items() <= defaults.items()
    for name in documented:
        done = CliRunner().invoke(operator_command, ["--trainer-image=x", "--lease-namespace=x"], env={name: "soon"})
        assert "'soon' is not a valid integer range" in done.output, name


def texts(found: Any) -> Iterator[Any]:
    """Each namespace, label and name of a priority class within an object."""
    if isinstance(found, dict):
        for key, inner in found.items():
            if key in ("namespace", "priorityClassName"):
                yield inner
            elif key in ("labels", "matchLabels"):
                yield from inner.values()
            yield from texts(inner)
    elif isinstance(found, list):
        for inner in found:
            yield from texts(inner)


@pytest.mark.parametrize("name", ["123", "true", "1e3"])
def test_names_that_yaml_reads_as_something_else_stay_names(name: str) -> None:
    values = {
        "fullnameOverride": "true",
        "serviceAccount.name": name,
        "priorityClassName": name,
        "watchNamespaces": [name],
        **MONITORING,
    }
    made = rendered(values, release=name, namespace=name)
    assert {type(text) for one in made if one["kind"] != "CustomResourceDefinition" for text in texts(one)} == {str}
    assert {type(one["metadata"]["name"]) for one in made} == {str}
    assert only(made, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == name
    assert name in {one["metadata"].get("namespace") for one in of(made, "Role")}


def test_two_releases_never_share_a_cluster_wide_object() -> None:
    def names(release: str, namespace: str) -> set[str]:
        return {
            one["metadata"]["name"]
            for one in rendered(release=release, namespace=namespace)
            if one["kind"].startswith("ClusterRole")
        }

    assert names("a-lorarl", "team").isdisjoint(names("lorarl", "team-a"))
    long = "n" * 62
    assert names("lorarl", f"{long}a").isdisjoint(names("lorarl", f"{long}b"))


def test_common_labels_are_on_each_object_and_on_the_operators_pods() -> None:
    made = rendered({"commonLabels": {"cost-centre": "42"}, **MONITORING})
    labelled = [one for one in made if one["kind"] != "CustomResourceDefinition"]
    assert [one["kind"] for one in labelled if one["metadata"].get("labels", {}).get("cost-centre") != "42"] == []
    deployment = only(made, "Deployment")["spec"]
    assert deployment["template"]["metadata"]["labels"]["cost-centre"] == "42"
    assert "cost-centre" not in deployment["selector"]["matchLabels"], "a selector can never change"


def test_jobs_policies_know_kuberays_namespace() -> None:
    (access,) = arguments(rendered({"kuberay.namespace": "kuberay-system"}))["--job-network-policy"]
    assert json.loads(access) == {"from": [], "kuberayNamespace": "kuberay-system"}


def test_a_users_label_replaces_the_charts() -> None:
    team, chart = {"helm.sh/chart": "ours", "team": "ml"}, {"app.kubernetes.io/managed-by": "Helm"}
    values = {
        f"{path}.labels": team for path in ("metrics.serviceMonitor", "metrics.prometheusRule", "metrics.dashboard")
    }
    arguments = flags({"podLabels": team, **values, **MONITORING})
    text = helm("template", "lorarl", str(CHART), *arguments, "--show-only=templates/deployment.yaml").stdout
    assert text.count("helm.sh/chart:") == 2, (
        "one for the Deployment, one for its pods: strict readers refuse a duplicate key"
    )
    made = rendered({"podLabels": team, **values, **MONITORING})
    labels = [only(made, kind)["metadata"]["labels"] for kind in ("ServiceMonitor", "PrometheusRule", "ConfigMap")]
    for one in (only(made, "Deployment")["spec"]["template"]["metadata"]["labels"], *labels):
        assert one.items() >= (team | chart).items()


def test_the_log_command_shows_more_than_ten_lines() -> None:
    (rule,) = (
        rule
        for rule in only(rendered(MONITORING), "PrometheusRule")["spec"]["groups"][0]["rules"]
        if rule["alert"] == "LorarlNoLeader"
    )
    assert rule["annotations"]["description"].endswith("--prefix --tail=-1")


@pytest.mark.parametrize("variable", ["LORARL_NAMESPACE", "LORARL_NAMESPACES"])
def test_the_operator_reads_its_namespaces_from_the_environment(variable: str) -> None:
    arguments = ["--trainer-image=x", "--lease-namespace=x"]
    with CliRunner().isolation(env={variable: "team-a team-b"}):
        context = operator_command.make_context("lorarl-operator", arguments, auto_envvar_prefix="LORARL")
    assert context.params["namespaces"] == ("team-a", "team-b")


def test_the_docs_table_has_all_granted_permissions() -> None:
    text = (CHART.parents[1] / "docs/operator.md").read_text()
    (text,) = re.findall(r"^## What the operator may do$(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    documented = {}
    for resources, verbs in re.findall(r"^\| (`[^|]*`) \| ([a-z, ]+) \|", text, re.MULTILINE):
        for resource in re.findall(r"`([^`]+)`", resources):
            documented[resource] = set(verbs.split(", "))
    granted = {resource: set(rule["verbs"]) for rule in ALL_RULES for resource in rule["resources"]}
    assert documented == granted


def test_each_object_has_helms_common_labels() -> None:
    for one in rendered({"watchNamespaces": ["a"], **MONITORING}):
        labels = one["metadata"]["labels"]
        assert (labels["app.kubernetes.io/name"], labels["app.kubernetes.io/instance"]) == ("lorarl", "lorarl"), one[
            "kind"
        ]
