"""What an administrator applies before, or gives the chart: helm/installer-role.yaml and helm/hardened-values.yaml."""

from __future__ import annotations

import json

import yaml

from lorarl_api.v1alpha1 import TARGETS
from support.cluster.audit import granted
from support.helm import CHART, helm, of, only, rendered

ROLE = yaml.safe_load((CHART.parent / "installer-role.yaml").read_text())
RIGHTS = yaml.safe_load((CHART / "files/rights.yaml").read_text())
NAMESPACED = {"watchNamespaces": ["team"], "crds.install": False, "aggregatedRoles": False}


def test_who_installs_may_grant_what_the_operator_needs() -> None:
    rules = [*RIGHTS["jobs"], *(rule for one in TARGETS for rule in RIGHTS[one]), *RIGHTS["own"]]
    assert granted(rules) <= granted(ROLE["rules"])
    named = [rule for rule in ROLE["rules"] if "resourceNames" in rule]
    assert [(rule["resources"], rule["resourceNames"]) for rule in named] == [(["namespaces"], ["kube-system"])]


def test_who_installs_may_create_each_object_and_none_of_the_cluster() -> None:
    may = granted(ROLE["rules"])
    verbs = {right.resource: {one.verb for one in may if one.resource == right.resource} for right in may}
    for one in rendered(NAMESPACED):
        assert one["metadata"]["namespace"] in ("team", "lorarl-system"), f"{one['kind']} is of the whole cluster"
        assert {"create", "get", "delete"} <= verbs[f"{one['kind'].lower()}s".replace("policys", "policies")], one[
            "kind"
        ]
    assert not {"*", "bind", "escalate", "impersonate"} & {right.verb for right in may}
    assert not {right.resource for right in may} & {"*", "pods/exec", "nodes", "clusterroles", "clusterrolebindings"}


def test_the_hardened_values_install_and_close_what_is_open_by_default() -> None:
    done = helm("template", "lorarl", str(CHART), "-f", str(CHART.parent / "hardened-values.yaml"))
    assert done.returncode == 0, done.stderr
    made = [one for one in yaml.load_all(done.stdout, yaml.CSafeLoader) if one]
    assert len(of(made, "ValidatingAdmissionPolicy")) > len(of(rendered(), "ValidatingAdmissionPolicy"))
    arguments = only(made, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    (access,) = (one.partition("=")[2] for one in arguments if one.startswith("--job-network-policy="))
    assert json.loads(access)["kuberayNamespace"] == "kuberay-system"
    assert json.loads(access)["egress"][0]["to"][0]["ipBlock"]["except"] == ["169.254.0.0/16"]
    assert "namespaceSelector: {}" not in done.stdout
