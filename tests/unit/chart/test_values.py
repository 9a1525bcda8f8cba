"""The values of the chart, and the messages about bad ones."""

from __future__ import annotations

import functools
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.helm import CHART, flags, helm, of, only, refusal, rendered

ROOT = CHART.parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
import generate_chart  # noqa: E402

# Bad values, and what helm's message must contain: the place, and what is expected there.
BAD: list[tuple[dict[str, Any], str]] = [
    ({"metrics.port": 8081}, r"probesPort: got 8081, expected another port than metrics.port"),
    ({"defaultTemplate": "site", "watchNamespaces": ["a"]}, r"defaultTemplate: got site, expected nothing beside"),
    ({"replicas": -1}, r"/replicas.*minimum: got -1, want 0"),
    ({"replicas": "two"}, r"/replicas.*got string, want integer"),
    ({"replica": 3}, r"additional properties 'replica' not allowed"),
    ({"image.digest": "sha256:abc"}, r"/image/digest.*does not match pattern"),
    ({"image.tag": "a b"}, r"/image/tag.*does not match pattern"),
    ({"image.repository": ""}, r"/image/repository.*minLength: got 0, want 1"),
    ({"image.pullPolicy": "Sometimes"}, r"/image/pullPolicy.*must be one of 'Always', 'IfNotPresent', 'Never'"),
    ({"image.registry": "x"}, r"/image.*additional properties 'registry' not allowed"),
    ({"trainerImage.pullPolicy": "Always"}, r"/trainerImage.*additional properties 'pullPolicy' not allowed"),
    ({"imagePullSecrets": ["registry"]}, r"/imagePullSecrets/0.*got string, want object"),
    ({"watchNamespaces": "team"}, r"/watchNamespaces.*got string, want array"),
    ({"watchNamespaces": ["a", "a"]}, r"/watchNamespaces.*items at 0 and 1 are equal"),
    ({"watchNamespaces": ["Team_A"]}, r"/watchNamespaces/0.*does not match pattern"),
    ({"extraEnv": [{"name": "A", "value": 60}]}, r"/extraEnv/0/value.*got number, want string"),
    ({"podLabels": {"app.kubernetes.io/component": "x"}}, r"invalid propertyName 'app.kubernetes.io/component'"),
    ({"enabled": "yes"}, r"/enabled.*got string, want boolean"),
    ({"logFormat": "xml"}, r"/logFormat.*must be one of 'json', 'text'"),
    ({"logLevel": "loud"}, r"/logLevel.*must be one of"),
    ({"runAsUser": 0}, r"/runAsUser.*minimum: got 0, want 1"),
    ({"metrics.port": 80}, r"/metrics/port.*minimum: got 80, want 1,024"),
    ({"metrics.serviceMonitor.interval": "often"}, r"/metrics/serviceMonitor/interval.*does not match pattern"),
    ({"metrics.prometheusRule.stuckAfterMinutes": 0}, r"/metrics/prometheusRule/stuckAfterMinutes.*minimum"),
    (
        {"metrics.dashboard.labels": {"grafana_dashboard": 1}},
        r"/metrics/dashboard/labels/grafana_dashboard.*got number, want string",
    ),
    ({"networkPolicy.egress.apiServerPorts": []}, r"/networkPolicy/egress/apiServerPorts.*minItems: got 0, want 1"),
    (
        {"networkPolicy.egress.apiServerCIDRs": ["10.0.0.1"]},
        r"/networkPolicy/egress/apiServerCIDRs/0.*does not match pattern",
    ),
    ({"nodeSelector": {"gpu": True}}, r"/nodeSelector/gpu.*got boolean, want string"),
    ({"resources": {"cpu": 1}}, r"/resources.*additional properties 'cpu' not allowed"),
    (
        {"topologySpreadConstraints": [{"maxSkew": 1}]},
        r"/topologySpreadConstraints/0.*missing properties 'topologyKey'",
    ),
    ({"resources": {"limits": {"memory": "lots"}}}, r"/resources/limits/memory.*does not match pattern"),
    ({"priorityClassName": "Bad_Name"}, r"/priorityClassName.*does not match pattern"),
    ({"tolerations": [{"foo": "x"}]}, r"/tolerations/0.*additional properties 'foo' not allowed"),
    ({"affinity": {"foo": {}}}, r"/affinity.*additional properties 'foo' not allowed"),
    ({"affinity": {"nodeAffinity": {"required": {}}}}, r"/affinity/nodeAffinity.*additional properties 'required'"),
    ({"jobNetworkPolicy.from": [{"foo": {}}]}, r"/jobNetworkPolicy/from/0.*additional properties 'foo' not allowed"),
    ({"jobNetworkPolicy.from": [{}]}, r"/jobNetworkPolicy/from/0.*minProperties: got 0, want 1"),
    ({"jobNetworkPolicy.egress.rules": [{"from": []}]}, r"/jobNetworkPolicy/egress/rules/0.*properties 'from'"),
    ({"networkPolicy.metricsFrom": [{"podSelector": {"app": "x"}}]}, r"/metricsFrom/0/podSelector.*properties 'app'"),
    ({"jobPolicy.namespaceSelector": {"tenants": "yes"}}, r"/jobPolicy/namespaceSelector.*properties 'tenants'"),
    ({"kuberay.namespace": "Not_One"}, r"/kuberay/namespace.*does not match pattern"),
    ({"revisionHistoryLimit": -1}, r"/revisionHistoryLimit.*minimum: got -1, want 0"),
    ({"commonLabels": {"app.kubernetes.io/name": "x"}}, r"invalid propertyName 'app.kubernetes.io/name'"),
    ({"extraVolumes": [{"mountPath": "/x"}]}, r"/extraVolumes/0.*missing property 'name'"),
    ({"dnsConfig": {"servers": []}}, r"/dnsConfig.*additional properties 'servers' not allowed"),
    ({"publish.aibrix": True}, r"/publish/aibrix.*got boolean, want object"),
    ({"publish.kserve": True}, r"/publish/kserve.*got boolean, want object"),
    ({"dashboard.stores": ["file:///mnt"]}, r"/dashboard/stores/0.*does not match pattern"),
    ({"dashboard.image.repository": "a b"}, r"/dashboard/image/repository"),
    (
        {"dashboard.networkPolicy.egressRules": [{"from": []}]},
        r"/dashboard/networkPolicy/egressRules/0.*properties 'from'",
    ),
    ({"crds.install": "no"}, r"/crds/install.*got string, want boolean"),
    ({"serviceAccount.create": False}, r"serviceAccount.name: got nothing, expected the name of an existing account"),
    (
        {"serviceAccount.name": "lorarl-own"},
        r"serviceAccount.name: got lorarl-own, expected a name that does not start with lorarl-",
    ),
]


ALL_OBJECTS = {
    "metrics.serviceMonitor.enabled": True,
    "metrics.prometheusRule.enabled": True,
    "metrics.dashboard.enabled": True,
    "networkPolicy.egress.enabled": True,
    "jobNetworkPolicy.egress.enabled": True,
    "jobPolicy.enabled": True,
    "dashboard.enabled": True,
    "dashboard.image.repository": "localhost:5000/page",
}
# Each value, with a setting that differs from its default or from ALL_OBJECTS.
CHANGED: dict[str, Any] = {
    "fullnameOverride": "other",
    "image.repository": "localhost:5000/operator",
    "image.tag": "1",
    "image.digest": "sha256:" + "0" * 64,
    "image.pullPolicy": "Always",
    "trainerImage.repository": "localhost:5000/trainer",
    "trainerImage.tag": "1",
    "trainerImage.digest": "sha256:" + "0" * 64,
    "imagePullSecrets": [{"name": "registry"}],
    "watchNamespaces": ["team"],
    "replicas": 3,
    "logFormat": "text",
    "logLevel": "debug",
    "resources": {"requests": {"cpu": "1"}},
    "runAsUser": None,
    "defaultTemplate": "site",
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "p"}],
    "podLabels": {"team": "ml"},
    "podAnnotations": {"note": "x"},
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [],
    "extraVolumes": [{"name": "ca", "configMap": {"name": "proxy-ca"}}],
    "extraVolumeMounts": [{"name": "tmp", "mountPath": "/var/tmp"}],
    "commonLabels": {"team": "ml"},
    "dnsConfig": {"options": [{"name": "ndots", "value": "2"}]},
    "revisionHistoryLimit": 10,
    "kuberay.namespace": "kuberay-system",
    "priorityClassName": "system-cluster-critical",
    "podDisruptionBudget": False,
    "serviceAccount.create": False,
    "serviceAccount.name": "own",
    "serviceAccount.annotations": {"role": "x"},
    "admissionPolicy.enabled": False,
    "admissionPolicy.forbiddenNamespaces": ["payroll"],
    "admissionPolicy.namespaceLabels": {"tenants": "yes"},
    "jobPolicy.enabled": False,
    "jobPolicy.namespaceSelector": {"matchLabels": {"tenants": "yes"}},
    "jobPolicy.images": ["registry.example.com/"],
    "jobPolicy.serviceAccounts": ["trainer"],
    "jobPolicy.secrets": ["s3-keys"],
    "jobPolicy.cloudRoles": ["arn:aws:iam::1:role/trainer"],
    "jobPolicy.priorityClasses": ["batch"],
    "jobPolicy.tolerations": ["spot"],
    "jobPolicy.podTemplateOverrides": False,
    "publish.aibrix.enabled": True,
    "publish.kserve.enabled": True,
    "aggregatedRoles": False,
    "crds.install": False,
    "crds.keep": False,
    "crds.refuseOlder": False,
    "networkPolicy.enabled": False,
    "networkPolicy.metricsFrom": [{"podSelector": {}}],
    "networkPolicy.egress.enabled": False,
    "networkPolicy.egress.apiServerPorts": [6443],
    "networkPolicy.egress.apiServerCIDRs": ["10.0.0.1/32"],
    "jobNetworkPolicy.enabled": False,
    "jobNetworkPolicy.from": [{"podSelector": {}}],
    "jobNetworkPolicy.egress.enabled": False,
    "jobNetworkPolicy.egress.rules": [],
    "metrics.port": 9000,
    "metrics.serviceMonitor.enabled": False,
    "metrics.serviceMonitor.interval": "10s",
    "metrics.serviceMonitor.labels": {"release": "prometheus"},
    "metrics.prometheusRule.enabled": False,
    "metrics.prometheusRule.labels": {"release": "prometheus"},
    "metrics.prometheusRule.stuckAfterMinutes": 7,
    "metrics.dashboard.enabled": False,
    "metrics.dashboard.labels": {"dashboards": "yes"},
    "metrics.dashboard.annotations": {"grafana_folder": "ML"},
    "dashboard.enabled": False,
    "dashboard.image.repository": "localhost:5000/dashboard",
    "dashboard.image.tag": "1",
    "dashboard.image.digest": "sha256:" + "0" * 64,
    "dashboard.stores": ["s3://team/adapters"],
    "dashboard.credentialsSecret": "s3-keys",
    "dashboard.serviceAccountAnnotations": {"role": "x"},
    "dashboard.service.port": 8080,
    "dashboard.service.annotations": {"note": "x"},
    "dashboard.resources": {"requests": {"cpu": "1"}},
    "dashboard.extraEnv": [{"name": "HTTPS_PROXY", "value": "p"}],
    "dashboard.extraVolumes": [{"name": "ca", "configMap": {"name": "proxy-ca"}}],
    "dashboard.extraVolumeMounts": [{"name": "tmp", "mountPath": "/var/tmp"}],
    "dashboard.networkPolicy.from": [{"podSelector": {}}],
    "dashboard.networkPolicy.egressRules": [{"ports": [{"port": 443}]}],
    "probesPort": 9001,
}


@pytest.mark.parametrize(("values", "message"), BAD, ids=[json.dumps(values) for values, _ in BAD])
def test_bad_values_are_refused_with_their_place_and_the_fix(values: dict[str, Any], message: str) -> None:
    text = refusal(values)
    assert re.search(message, text.replace("\n", " ")), text


def leaves(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    for name, inner in schema["properties"].items():
        if f"{path}{name}" in (
            "global",
            "enabled",
        ):
            continue  # These belong to charts that depend on this one.
        if "properties" in inner and name not in ("resources", "affinity", "dnsConfig"):
            yield from leaves(inner, f"{path}{name}.")
        else:
            yield f"{path}{name}"


VALUES = set(leaves(json.loads((CHART / "values.schema.json").read_text())))


def test_each_value_is_in_the_schema_and_in_the_readme() -> None:
    rows = dict(re.findall(r"^\| `([\w.]+)` \| (.*?) \| ", (CHART / "README.md").read_text(), re.MULTILINE))
    assert {path for path, default in rows.items() if default} == VALUES


@functools.cache
def template(*arguments: str) -> str:
    done = helm("template", "lorarl", str(CHART), *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", sorted(CHANGED))
def test_each_value_changes_what_is_installed(path: str) -> None:
    before = ALL_OBJECTS | ({"serviceAccount.name": "own"} if path == "serviceAccount.create" else {})
    assert template(*flags(before | {path: CHANGED[path]})) != template(*flags(before))


def test_no_value_was_left_out() -> None:
    assert set(CHANGED) | {"kuberay.check"} == VALUES, "the effect of kuberay.check is visible only in a cluster"


def test_the_readme_and_the_crd_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate_chart.main(["--check"]) == 0, capsys.readouterr().err


def test_drift_of_the_chart_is_reported_with_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(CHART, tmp_path / "helm/lorarl")
    shutil.copytree(ROOT / "crds", tmp_path / "crds")
    assert generate_chart.main(["--check", "--root", str(tmp_path)]) == 0
    values = tmp_path / "helm/lorarl/values.yaml"
    values.write_text(values.read_text().replace("replicas: 2", "replicas: 3"))
    (tmp_path / "crds/lorarl.io_lorarljobs.yaml").write_text("kind: Other\n")
    assert generate_chart.main(["--check", "--root", str(tmp_path)]) == 1
    assert capsys.readouterr().err.count("Run `make generate`") == 2
    assert generate_chart.main(["--root", str(tmp_path)]) == 0
    assert "| `replicas` | `3` |" in (tmp_path / "helm/lorarl/README.md").read_text()


def test_a_value_without_a_comment_is_reported() -> None:
    with pytest.raises(generate_chart.UndocumentedValueError, match=r"values.yaml: inner.two has no comment"):
        generate_chart.readme("version: 1\ndescription: x", "# Outer.\ninner:\n  # First.\n  one: 1\n\n  two: 2\n")


def test_the_rendered_crds_are_the_generated_ones() -> None:
    generated = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "crds").glob("lorarl.io_*.yaml"))]
    made = of(rendered(), "CustomResourceDefinition")
    assert [each["spec"] for each in made] == [each["spec"] for each in generated]
    assert [each["metadata"]["name"] for each in made] == [each["metadata"]["name"] for each in generated]
    assert [each["metadata"]["annotations"] for each in made] == [{"helm.sh/resource-policy": "keep"}] * len(generated)
    deletable = of(rendered({"crds.keep": False}), "CustomResourceDefinition")
    assert [each for each in deletable if "annotations" in each["metadata"]] == []
    assert of(rendered({"crds.install": False}), "CustomResourceDefinition") == []


def test_an_api_server_that_knows_no_selectable_fields_gets_none() -> None:
    def jobs(version: str) -> dict[str, Any]:
        cluster = ("--kube-version", version, "--api-versions", "apiregistration.k8s.io/v1")
        documents = yaml.load_all(template(*cluster, *flags({"kuberay.check": False})), yaml.CSafeLoader)
        crd = only([one for one in documents if one], "CustomResourceDefinition", "lorarljobs.lorarl.io")
        (served,) = crd["spec"]["versions"]
        return dict(served)

    newer, older = jobs("1.31.0"), jobs("1.29.6")
    assert newer.pop("selectableFields") == [{"jsonPath": ".status.phase"}]
    assert newer == older


@pytest.mark.parametrize("release", ["lorarl-1.0", "1lorarl"])
def test_a_release_name_that_is_not_a_service_name_is_refused(release: str) -> None:
    done = helm("template", release, str(CHART))
    assert done.returncode != 0
    assert f"The release's name: got {release}, expected lower-case letters, digits and dashes" in done.stderr
    named = rendered({"fullnameOverride": "other"}, release=release)
    assert only(named, "Service")["metadata"]["name"] == "other-metrics"


def test_a_parent_chart_may_disable_this_one(tmp_path: Path) -> None:
    shutil.copytree(CHART, tmp_path / "charts/lorarl")
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
    depends = {"name": "lorarl", "version": version, "condition": "lorarl.enabled"}
    (tmp_path / "Chart.yaml").write_text(
        yaml.safe_dump({"apiVersion": "v2", "name": "site", "version": "1.0.0", "dependencies": [depends]})
    )
    for enabled in (True, False):
        done = helm("template", "lorarl", str(tmp_path), *flags({"lorarl.enabled": enabled}))
        assert done.returncode == 0, done.stderr
        assert ("kind: Deployment" in done.stdout) == enabled


def test_helm_lint_passes() -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr
