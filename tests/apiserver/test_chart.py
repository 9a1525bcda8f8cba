"""The chart on a real API server with Kubernetes' controllers: install, upgrade, uninstall, and users' permissions."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from apiserver.chart_site import (
    CRD,
    CRDS,
    INSTANCE,
    JOB,
    NAMESPACE,
    YOUNGER,
    Site,
    account,
    can,
    chart_site,
    columns,
    crd_owner,
    crd_version,
    established,
    older_chart,
    refuses_older,
    require_rights,
)
from support.cluster.client import ApiError, Object
from support.cluster.processes import find, until
from support.helm import CHART, TIMEOUT_SECONDS, flags, only, rendered

ROOT = CHART.parents[1]
PAGE = f"{INSTANCE},app.kubernetes.io/component=dashboard"
PAGES_ACCOUNT = f"system:serviceaccount:{NAMESPACE}:dashboard-lorarl"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with chart_site(tmp_path_factory.mktemp("chart")) as found:
        yield found


def test_without_kuberay_the_chart_prints_the_command_for_it(site: Site) -> None:
    assert site.without_kuberay.returncode != 0
    output = site.without_kuberay.stderr
    assert "KubeRay, which runs the jobs' pods, is not installed" in output
    repository = "https://ray-project.github.io/kuberay-helm"
    assert f"helm install kuberay-operator kuberay-operator --repo {repository} --version 1.6.2" in output
    assert "--set kuberay.check=false" in output
    assert site.left_by_refusal == []


def test_a_client_side_dry_run_succeeds(site: Site) -> None:
    done = site.helm("install", "lorarl", str(CHART), "-n", NAMESPACE, "--dry-run=client")
    assert done.returncode == 0, done.stderr
    assert "kind: Deployment" in done.stdout


def test_alerts_for_a_cluster_without_the_prometheus_operator_are_refused(site: Site) -> None:
    done = site.helm("install", "lorarl", str(CHART), "-n", NAMESPACE, *flags({"metrics.prometheusRule.enabled": True}))
    assert done.returncode != 0
    assert "metrics.prometheusRule.enabled: got true, but this cluster has no PrometheusRules" in done.stderr


def test_cluster_mode_from_install_to_uninstall(site: Site, tmp_path: Path) -> None:
    api = site.cluster.api
    with site.release(chart=older_chart(tmp_path)) as notes:
        assert "runs the LoRARLJobs of all namespaces" in notes
        assert "image.repository is still the example" in notes
        established(site, [crd for crd in CRDS if crd not in YOUNGER])
        assert "Score" in columns(site.cluster) and not any(api.get("CustomResourceDefinition", one) for one in YOUNGER)
        before = site.job("steady")
        pods = until(20, "two replicas", lambda: _two(api.list("Pod", NAMESPACE, labels=INSTANCE)))
        assert {pod["spec"]["serviceAccountName"] for pod in pods} == {"operator-lorarl"}
        require_rights(site, "create", "rayjobs.ray.io", {"team-a": True})

        site.upgrade({"replicas": 3})
        assert "Reward" in columns(site.cluster)
        assert "Score" not in columns(site.cluster)
        established(site)
        assert api.get("LoRARLJob", "steady", "default") == before
        assert (
            json.loads(site.cluster.must("get", "deployment/lorarl", "-n", NAMESPACE, "-o", "json"))["spec"]["replicas"]
            == 3
        )

        site.uninstall()
        left = sorted(f"customresourcedefinition.apiextensions.k8s.io/{crd}" for crd in CRDS)
        until(30, "everything but the CRDs is gone", lambda: sorted(site.of_release()) == left)
        assert api.get("LoRARLJob", "steady", "default") == before
        require_rights(site, "create", "rayjobs.ray.io", {"team-a": False})

        done = site.helm("install", "lorarl", str(CHART), "-n", NAMESPACE)
        assert done.returncode == 0, f"the old CRD blocks the installation: {done.stderr}"
        assert api.get("LoRARLJob", "steady", "default") == before


def test_an_installation_without_a_replica_is_pointed_out(site: Site) -> None:
    for replicas, is_told in ((0, True), (1, False)):
        arguments = ("-n", NAMESPACE, "--create-namespace", "--dry-run=client", *flags({"replicas": replicas}))
        done = site.helm("install", "lorarl", str(CHART), *arguments)
        assert ("replicas is 0: no operator runs" in done.stdout) == is_told, done.stderr


def test_the_teams_page_comes_with_the_way_to_it_and_goes(site: Site) -> None:
    api = site.cluster.api
    with site.release({"dashboard.enabled": True, "dashboard.stores": ["s3://team/adapters"]}) as notes:
        assert "kubectl port-forward -n lorarl-system service/lorarl-dashboard 8400:80" in notes
        until(20, "its pod is made", lambda: api.list("Pod", NAMESPACE, labels=PAGE))
        require_rights(site, "watch", "lorarljobs.lorarl.io", {"team-a": True, "default": True}, PAGES_ACCOUNT)
        require_rights(site, "create", "lorarljobs.lorarl.io", {"team-a": False}, PAGES_ACCOUNT)
        require_rights(site, "get", "secrets", {"team-a": False, NAMESPACE: False}, PAGES_ACCOUNT)
        site.upgrade({"dashboard.enabled": False})
        until(20, "it is gone", lambda: not [one for one in site.of_release() if "dashboard" in one])


def test_namespaced_mode_from_install_to_uninstall(site: Site) -> None:
    everywhere = {"watchNamespaces": ["team-a", "team-b"]}
    with site.release(everywhere) as notes:
        assert "runs the LoRARLJobs of the namespaces team-a, team-b" in notes
        established(site)
        for crd in (CRD, *YOUNGER):
            require_rights(site, "list", crd, {"team-a": True, "team-b": True, "default": False, NAMESPACE: False})
        require_rights(site, "update", "leases.coordination.k8s.io", {NAMESPACE: True, "team-a": False})
        site.job("steady", "team-a")

        site.upgrade({"watchNamespaces": ["team-b"]})
        require_rights(site, "list", CRD, {"team-a": False, "team-b": True})
        site.upgrade({"watchNamespaces": []})
        require_rights(site, "list", CRD, {"default": True})
        assert site.cluster.api.list("Role", "team-b", labels=INSTANCE) == []

        site.uninstall()
        until(30, "everything but the CRDs is gone", lambda: len(site.of_release()) == len(CRDS))
        assert site.cluster.api.get("LoRARLJob", "steady", "team-a") is not None


def test_a_missing_namespace_is_reported(site: Site) -> None:
    done = site.helm(
        "install",
        "lorarl",
        str(CHART),
        "-n",
        NAMESPACE,
        *flags({"watchNamespaces": ["nowhere"], "crds.install": False}),
    )
    site.helm("uninstall", "lorarl", "-n", NAMESPACE, "--ignore-not-found")
    assert done.returncode != 0
    assert 'namespaces "nowhere" not found' in done.stderr


def test_a_crd_that_is_not_kept_is_deleted(site: Site) -> None:
    with site.release({"crds.keep": False}):
        established(site)
        site.uninstall()
        site.cluster.api.wait_gone("CustomResourceDefinition", CRD)


def test_a_foreign_crd_is_used_and_not_changed(site: Site) -> None:
    site.cluster.must("apply", "--server-side", "-f", str(CHART / "files/lorarl.io_lorarljobs.yaml"))
    version = crd_version(site)
    with site.release({"crds.install": False, "aggregatedRoles": False}):
        assert crd_version(site) == version
        site.uninstall()
        assert site.cluster.api.get("CustomResourceDefinition", CRD) is not None


def test_the_crd_belongs_to_one_release(site: Site) -> None:
    with site.release({"watchNamespaces": ["team-a"]}):
        established(site)
        second = ("install", "second", str(CHART), "-n", "team-b", *flags({"watchNamespaces": ["team-b"]}))
        try:
            refused = site.helm(*second)
            assert refused.returncode != 0
            assert re.search(r'CustomResourceDefinition "\w+\.lorarl\.io" in namespace "" exists', refused.stderr)
            done = site.helm(*second, *flags({"crds.install": False}))
            assert done.returncode == 0, done.stderr
        finally:
            site.helm("uninstall", "second", "-n", "team-b", "--ignore-not-found")


def test_an_older_chart_removes_no_field_from_a_newer_crd(site: Site, tmp_path: Path) -> None:
    older = older_chart(tmp_path)
    with site.release():
        established(site)
        refused = site.helm("upgrade", "lorarl", str(older), "-n", NAMESPACE)
        assert refused.returncode != 0
        assert "lorarljobs.lorarl.io is from chart version 0.1.0, and this is 0.0.9" in refused.stderr
        hint = "Upgrade this release to 0.1.0 or newer, or keep the definition: --set crds.install=false"
        assert hint in refused.stderr
        site.upgrade({"crds.install": False}, older)
        assert "Reward" in columns(site.cluster)
        site.upgrade()
        assert crd_owner(site) == NAMESPACE, "the release owns it again"


@pytest.mark.long
def test_a_rollback_or_argo_cd_restores_an_older_crd_if_allowed(site: Site, tmp_path: Path) -> None:
    """Neither runs the chart's own check on the cluster: a policy refuses."""
    older = older_chart(tmp_path)
    argo_cd = site.helm("template", "lorarl", str(older), "-n", NAMESPACE, "--show-only", "templates/crd.yaml").stdout
    with site.release(chart=older):
        site.upgrade()
        until(20, "the policy is in force", lambda: refuses_older(site, argo_cd))
        assert "Reward" in columns(site.cluster)
        refused = site.helm("rollback", "lorarl", "1", "-n", NAMESPACE)
        assert refused.returncode != 0
        assert "from chart version 0.1.0, and the new one from 0.0.9" in refused.stderr
        for crd in CRDS:
            assert f"kubectl label crd {CRD} helm.sh/chart-" in refused.stderr
            site.cluster.must("label", "crd", crd, "helm.sh/chart-")
        done = site.helm("rollback", "lorarl", "1", "-n", NAMESPACE)
        assert done.returncode == 0, done.stderr
        assert "Score" in columns(site.cluster)


@pytest.mark.long
def test_a_crd_that_is_being_deleted_blocks_the_installation(site: Site) -> None:
    with site.release():
        established(site)
        held = {**JOB, "metadata": {"name": "held", "namespace": "default", "finalizers": ["lorarl.io/cleanup"]}}
        site.cluster.api.create(held)
        site.cluster.must("delete", "crd", CRD, "--wait=false")
        refused = site.helm("upgrade", "lorarl", str(CHART), "-n", NAMESPACE)
        assert refused.returncode != 0
        assert "lorarljobs.lorarl.io is being deleted, and would not exist after this installation" in refused.stderr
        (free,) = (line for line in refused.stderr.splitlines() if "kubectl patch" in line)
        site.cluster.must(*shlex.split(free.replace("NAMESPACE", "default").replace("NAME", "held"))[1:])
        site.cluster.api.wait_gone("CustomResourceDefinition", CRD)
        site.upgrade()
        established(site)


def test_the_docs_commands_install_without_cluster_wide_permissions(site: Site) -> None:
    page = (ROOT / "docs/install.md").read_text()
    section = page.partition("### For some namespaces only\n")[2].partition("\n## ")[0]
    _, administrators, users = re.findall(r"^```\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    programs = os.pathsep.join(str(Path(find(name)).parent) for name in ("kubectl", "helm"))
    environment = {
        **os.environ,
        "KUBECONFIG": str(site.cluster.kubeconfig),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
    }

    def run(commands: str, **more: str) -> subprocess.CompletedProcess[str]:
        commands = re.sub(r"\bteam\b", "team-a", commands).replace("USER", "ana")
        return subprocess.run(
            ["bash", "-c", commands],
            cwd=ROOT,
            env=environment | more,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
        )

    done = run(administrators)
    assert done.returncode == 0, done.stderr
    established(site)
    try:
        refused = run(users.replace("--namespace", "--create-namespace --namespace"), HELM_KUBEASUSER="ana")
        assert 'User "ana" cannot create resource "namespaces"' in refused.stderr, "the docs could be shorter"
        done = run(users, HELM_KUBEASUSER="ana")
        assert done.returncode == 0, done.stderr
        require_rights(site, "create", "rayjobs.ray.io", {"team-a": True})
    finally:
        site.helm("uninstall", "lorarl", "-n", NAMESPACE, "--ignore-not-found")
        site.delete_crds()


def test_users_may_do_what_their_roles_allow(site: Site) -> None:
    with site.release():
        established(site)
        for role in ("view", "edit", "admin"):
            site.cluster.must(
                "create", "rolebinding", f"{role}er", f"--clusterrole={role}", f"--user={role}er", "-n", "team-a"
            )
        # The controller that aggregates view, edit and admin takes a moment.
        filled = (("viewer", "get"), ("editer", "create"), ("adminer", "delete"))
        asked = [(user, verb, crd) for user, verb in filled for crd in (CRD, *YOUNGER)]
        until(20, "the roles are aggregated", lambda: all(can(site, *one, "team-a") for one in asked))
        manifest = json.dumps({**JOB, "metadata": {"name": "of-ana", "namespace": "team-a"}})
        denied = site.cluster.kubectl("apply", "--as=viewer", "-f", "-", stdin=manifest)
        assert denied.returncode != 0
        told = ('User "viewer" cannot create resource "lorarljobs"', 'forbidden: User "viewer"')
        assert any(one in denied.stderr for one in told)
        site.cluster.must("apply", "--as=editer", "-f", "-", stdin=manifest)
        site.cluster.must("get", "lrj", "of-ana", "-n", "team-a", "--as=viewer")
        assert not can(site, "viewer", "delete", CRD, "team-a")
        assert not can(site, "adminer", "patch", f"{CRD}/status", "team-a")
        assert not can(site, "editer", "create", CRD, "team-b")
        assert can(site, "editer", "get", CRDS[1], "team-a")
        assert not can(site, "editer", "create", CRDS[1], "team-a"), "templates limit those who may edit jobs"
        assert can(site, "adminer", "create", CRDS[1], "team-a")


def test_the_operator_can_grant_only_a_jobs_permission(site: Site) -> None:
    with site.release({"watchNamespaces": ["team-a"]}):
        established(site)
        operator = site.cluster.api_as(site.cluster.service_account_token(NAMESPACE, "operator-lorarl"))

        def role(resource: str, group: str = "lorarl.io") -> Object:
            about = {"name": "lorarl-x", "namespace": "team-a"}
            rule = {"apiGroups": [group], "resources": [resource], "resourceNames": ["x"], "verbs": ["get", "patch"]}
            return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": about, "rules": [rule]}

        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "lorarl-x", "namespace": "team-a"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "lorarl-x"},
            "subjects": [{"kind": "ServiceAccount", "name": "lorarl-x", "namespace": "team-a"}],
        }
        job = {**JOB, "metadata": {"name": "x", "namespace": "team-a"}}
        site.cluster.api.create(job)
        operator.apply(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "lorarl-x", "namespace": "team-a"}}
        )
        operator.apply(role("lorarljobs/status"))
        operator.apply(binding)
        trainer = site.cluster.api_as(site.cluster.service_account_token("team-a", "lorarl-x"))
        until(10, "the permission is in force", lambda: _patched(trainer, "x"))
        for refused in (role("secrets", ""), role("pods/exec", ""), role("rayjobs", "ray.io")):
            with pytest.raises(ApiError, match="attempting to grant RBAC permissions not currently held"):
                operator.apply(refused)
        for verb, resource in (
            ("get", "secrets"),
            ("create", "pods/exec"),
            ("create", "pods"),
            ("patch", "rayjobs.ray.io"),
            ("get", "nodes"),
        ):
            assert not can(site, account(), verb, resource, "team-a"), (verb, resource)


def test_the_pods_are_admitted_with_restricted_enforced(site: Site) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api = site.cluster.api
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "restricted", "labels": labels}})
    api.wait("ServiceAccount", "default", "restricted", bool)
    made = rendered(namespace="restricted")
    api.create(only(made, "ServiceAccount"))
    deployment = only(made, "Deployment")
    operator = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "operator", "namespace": "restricted"}}
    api.create({**operator, "spec": deployment["spec"]["template"]["spec"]})
    api.create(only(made, "Pod"))
    loose = {
        **operator,
        "metadata": {"name": "loose", "namespace": "restricted"},
        "spec": {"containers": [{"name": "x", "image": "x"}]},
    }
    with pytest.raises(ApiError, match='violates PodSecurity "restricted'):
        api.create(loose)


def test_the_api_server_accepts_all_objects_of_all_values(site: Site) -> None:
    values = {
        "podLabels": {"team": "ml"},
        "podAnnotations": {"note": "x"},
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "affinity": {
            "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]}
        },
        "priorityClassName": "system-cluster-critical",
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        "networkPolicy.metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
        "networkPolicy.egress": {
            "enabled": True,
            "apiServerPorts": [6443],
            "apiServerCIDRs": ["10.0.0.1/32", "fd00::/8"],
        },
        "metrics.dashboard.enabled": True,
        "watchNamespaces": ["team-a", "default"],
    }
    made = rendered(values, namespace="default")
    text = yaml.safe_dump_all(made)
    site.cluster.must("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=text)


def _two(pods: list[Object]) -> list[Object] | None:
    return pods if len(pods) == 2 else None


def _patched(trainer: Any, name: str) -> bool:
    try:
        trainer.patch("LoRARLJob", name, {"status": {"step": 1}}, "team-a", subresource="status")
    except ApiError as error:
        if error.status == 403:
            return False
        raise
    return True
