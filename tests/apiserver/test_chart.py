"""The chart on a real API server, with Kubernetes' own controllers: installed, upgraded, uninstalled, and what people may then do."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.cluster.client import ApiError, Object
from support.cluster.control_plane import Cluster, control_plane
from support.cluster.controllers import controllers
from support.cluster.crds import wait_until_served
from support.cluster.kuberay import install_kuberay
from support.cluster.processes import find, find_share, until
from support.cluster.tools import tools_or_skip
from support.helm import CHART, TIMEOUT_SECONDS, flags, helm, only, rendered

ROOT = CHART.parents[1]
CRD = "lorarljobs.lorarl.io"
NAMESPACE = "lorarl-system"
INSTANCE = "app.kubernetes.io/instance=lorarl"
JOB: Object = {
    "apiVersion": "lorarl.io/v1alpha1",
    "kind": "LoRARLJob",
    "spec": {
        "model": {"uri": "s3://team/base"},
        "adapter": {"targetModules": ["all-linear"]},
        "reward": {"type": "exact"},
        "data": {"train": {"uri": "s3://team/train.jsonl"}},
        "checkpoint": {"uri": "s3://team/checkpoints"},
    },
}


@dataclass(frozen=True)
class Site:
    """A cluster with KubeRay's kinds, and what helm said before they were there."""

    cluster: Cluster
    without_kuberay: subprocess.CompletedProcess[str]
    left_by_refusal: list[str]

    def helm(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return helm(*arguments, kubeconfig=self.cluster.kubeconfig)

    @contextmanager
    def release(self, values: dict[str, Any] | None = None, chart: Path = CHART) -> Iterator[str]:
        """An installed chart, and what helm printed; it and all it leaves are removed at the end."""
        done = self.helm("install", "lorarl", str(chart), "-n", NAMESPACE, "--create-namespace", *flags(values or {}))
        try:
            assert done.returncode == 0, done.stderr
            yield done.stdout
        finally:
            self.helm("uninstall", "lorarl", "-n", NAMESPACE, "--ignore-not-found")
            self.cluster.kubectl("delete", "crd", CRD, "--ignore-not-found")

    def upgrade(self, values: dict[str, Any] | None = None, chart: Path = CHART) -> None:
        done = self.helm("upgrade", "lorarl", str(chart), "-n", NAMESPACE, *flags(values or {}))
        assert done.returncode == 0, done.stderr

    def uninstall(self) -> None:
        done = self.helm("uninstall", "lorarl", "-n", NAMESPACE)
        assert done.returncode == 0, done.stderr

    def of_release(self) -> list[str]:
        """Everything in the cluster with the release's label, as `kind/name`."""
        return everything(self.cluster, INSTANCE)

    def job(self, name: str, namespace: str = "default") -> Object:
        return self.cluster.api.create({**JOB, "metadata": {"name": name, "namespace": namespace}})


def everything(cluster: Cluster, labels: str) -> list[str]:
    kinds = cluster.must("api-resources", "--verbs=list", "-o", "name").split()
    # Helm's own Secret and the objects that a controller makes anew would say nothing of the chart.
    kinds = [kind for kind in kinds if not kind.startswith(("events", "endpoint", "componentstatuses"))]
    return cluster.must("get", ",".join(kinds), "-A", "-l", labels, "-o", "name", "--ignore-not-found").split()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with tools_or_skip():
        find("helm")
        find_share("ray-operator")
        with control_plane(tmp_path_factory.mktemp("chart"), service_accounts=True) as cluster, controllers(cluster):
            refused = helm(
                "install", "lorarl", str(CHART), "-n", NAMESPACE, "--create-namespace", kubeconfig=cluster.kubeconfig
            )
            left = everything(cluster, INSTANCE)
            install_kuberay(cluster)
            for namespace in ("team-a", "team-b"):
                cluster.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
            yield Site(cluster, refused, left)


def older_chart(folder: Path) -> Path:
    """The chart as an older version might have been: another CRD, another version."""
    chart = folder / "lorarl"
    shutil.copytree(CHART, chart)
    for path, old, new in (
        ("Chart.yaml", "ersion: 0.1.0", "ersion: 0.0.9"),
        ("files/lorarl.io_lorarljobs.yaml", "name: Reward", "name: Score"),
    ):
        text = (chart / path).read_text()
        assert old in text
        (chart / path).write_text(text.replace(old, new))
    return chart


def columns(cluster: Cluster) -> list[str]:
    crd = cluster.api.get("CustomResourceDefinition", CRD)
    assert crd is not None
    return [column["name"] for column in crd["spec"]["versions"][0]["additionalPrinterColumns"]]


def established(site: Site) -> None:
    wait_until_served(site.cluster, [CRD])


def can(site: Site, user: str, verb: str, resource: str, namespace: str) -> bool:
    kind, _, part = resource.partition("/")
    return (
        site.cluster.kubectl(
            "auth", "can-i", verb, kind, f"--subresource={part}", "-n", namespace, f"--as={user}", "-q"
        ).returncode
        == 0
    )


def require_rights(site: Site, verb: str, resource: str, allowed: dict[str, bool]) -> None:
    """Require that the operator may do this in the namespaces where it should, once the API server has learnt of its Roles."""
    until(
        10,
        f"{verb} {resource}: {allowed}",
        lambda: {name: can(site, account(), verb, resource, name) for name in allowed} == allowed,
    )


def account(namespace: str = NAMESPACE) -> str:
    return f"system:serviceaccount:{namespace}:operator-lorarl"


def test_without_kuberay_nothing_is_installed_and_the_command_that_installs_it_is_told(site: Site) -> None:
    assert site.without_kuberay.returncode != 0
    said = site.without_kuberay.stderr
    assert "KubeRay, which runs the jobs' pods, is not installed" in said
    assert (
        "helm install kuberay-operator kuberay-operator --repo https://ray-project.github.io/kuberay-helm --version 1.6.2"
        in said
    )
    assert "--set kuberay.check=false" in said
    assert site.left_by_refusal == []


def test_a_preview_on_the_client_raises_no_false_alarm(site: Site) -> None:
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
        established(site)
        assert "Score" in columns(site.cluster)
        before = site.job("steady")
        pods = until(20, "two replicas", lambda: _two(api.list("Pod", NAMESPACE, labels=INSTANCE)))
        assert {pod["spec"]["serviceAccountName"] for pod in pods} == {"operator-lorarl"}
        require_rights(site, "create", "rayjobs.ray.io", {"team-a": True})

        site.upgrade({"replicas": 3})
        assert "Reward" in columns(site.cluster)
        assert "Score" not in columns(site.cluster)
        assert api.get("LoRARLJob", "steady", "default") == before
        assert (
            json.loads(site.cluster.must("get", "deployment/lorarl", "-n", NAMESPACE, "-o", "json"))["spec"]["replicas"]
            == 3
        )

        site.uninstall()
        left = f"customresourcedefinition.apiextensions.k8s.io/{CRD}"
        until(30, "everything but the CRD is gone", lambda: site.of_release() == [left])
        assert api.get("LoRARLJob", "steady", "default") == before
        require_rights(site, "create", "rayjobs.ray.io", {"team-a": False})

        done = site.helm("install", "lorarl", str(CHART), "-n", NAMESPACE)
        assert done.returncode == 0, f"the CRD that was kept is in the way: {done.stderr}"
        assert api.get("LoRARLJob", "steady", "default") == before


def test_namespaced_mode_from_install_to_uninstall(site: Site) -> None:
    everywhere = {"watchNamespaces": ["team-a", "team-b"]}
    with site.release(everywhere) as notes:
        assert "runs the LoRARLJobs of the namespaces team-a, team-b" in notes
        established(site)
        require_rights(site, "list", CRD, {"team-a": True, "team-b": True, "default": False, NAMESPACE: False})
        require_rights(site, "update", "leases.coordination.k8s.io", {NAMESPACE: True, "team-a": False})
        site.job("steady", "team-a")

        site.upgrade({"watchNamespaces": ["team-b"]})
        require_rights(site, "list", CRD, {"team-a": False, "team-b": True})
        site.upgrade({"watchNamespaces": []})
        require_rights(site, "list", CRD, {"default": True})
        assert site.cluster.api.list("Role", "team-b", labels=INSTANCE) == []

        site.uninstall()
        until(30, "everything but the CRD is gone", lambda: len(site.of_release()) == 1)
        assert site.cluster.api.get("LoRARLJob", "steady", "team-a") is not None


def test_a_namespace_that_is_not_there_is_told(site: Site) -> None:
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


def test_a_crd_that_need_not_be_kept_goes(site: Site) -> None:
    with site.release({"crds.keep": False}):
        established(site)
        site.uninstall()
        site.cluster.api.wait_gone("CustomResourceDefinition", CRD)


def test_a_crd_of_somebody_else_is_used_and_left_alone(site: Site) -> None:
    site.cluster.must("apply", "--server-side", "-f", str(CHART / "files/lorarl.io_lorarljobs.yaml"))
    version = _version(site)
    with site.release({"crds.install": False, "aggregatedRoles": False}):
        assert _version(site) == version
        site.uninstall()
        assert site.cluster.api.get("CustomResourceDefinition", CRD) is not None


def test_the_crd_belongs_to_one_release_and_others_do_without(site: Site) -> None:
    with site.release({"watchNamespaces": ["team-a"]}):
        established(site)
        second = ("install", "second", str(CHART), "-n", "team-b", *flags({"watchNamespaces": ["team-b"]}))
        try:
            refused = site.helm(*second)
            assert refused.returncode != 0
            assert 'CustomResourceDefinition "lorarljobs.lorarl.io"' in refused.stderr
            done = site.helm(*second, *flags({"crds.install": False}))
            assert done.returncode == 0, done.stderr
        finally:
            site.helm("uninstall", "second", "-n", "team-b", "--ignore-not-found")


def test_an_older_chart_takes_no_field_out_of_a_newer_crd(site: Site, tmp_path: Path) -> None:
    older = older_chart(tmp_path)
    with site.release():
        established(site)
        refused = site.helm("upgrade", "lorarl", str(older), "-n", NAMESPACE)
        assert refused.returncode != 0
        assert "lorarljobs.lorarl.io is of chart version 0.1.0, and this is 0.0.9" in refused.stderr
        assert (
            "Upgrade this release to 0.1.0 or newer, or leave the definition as it is: --set crds.install=false"
            in refused.stderr
        )
        site.upgrade({"crds.install": False}, older)
        assert "Reward" in columns(site.cluster)
        site.upgrade()
        assert _owner(site) == NAMESPACE, "the release has it again"


def test_a_rollback_brings_back_the_crd_of_its_time(site: Site, tmp_path: Path) -> None:
    with site.release(chart=older_chart(tmp_path)):
        site.upgrade()
        done = site.helm("rollback", "lorarl", "1", "-n", NAMESPACE)
        assert done.returncode == 0, done.stderr
        assert "Score" in columns(site.cluster)


def test_a_crd_that_is_being_deleted_is_not_installed_upon(site: Site) -> None:
    with site.release():
        established(site)
        held = {**JOB, "metadata": {"name": "held", "namespace": "default", "finalizers": ["lorarl.io/cleanup"]}}
        site.cluster.api.create(held)
        site.cluster.must("delete", "crd", CRD, "--wait=false")
        refused = site.helm("upgrade", "lorarl", str(CHART), "-n", NAMESPACE)
        assert refused.returncode != 0
        assert "lorarljobs.lorarl.io is being deleted, and would be gone after this" in refused.stderr
        (free,) = (line for line in refused.stderr.splitlines() if "kubectl patch" in line)
        site.cluster.must(*shlex.split(free.replace("NAMESPACE", "default").replace("NAME", "held"))[1:])
        site.cluster.api.wait_gone("CustomResourceDefinition", CRD)
        site.upgrade()
        established(site)


def test_the_docs_commands_install_without_rights_on_the_cluster(site: Site) -> None:
    section = (
        (ROOT / "docs/install.md").read_text().partition("### For some namespaces only\n")[2].partition("\n## ")[0]
    )
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
        assert 'User "ana" cannot create resource "namespaces"' in refused.stderr, "the docs may say less"
        done = run(users, HELM_KUBEASUSER="ana")
        assert done.returncode == 0, done.stderr
        require_rights(site, "create", "rayjobs.ray.io", {"team-a": True})
    finally:
        site.helm("uninstall", "lorarl", "-n", NAMESPACE, "--ignore-not-found")
        site.cluster.must("delete", "crd", CRD)


def test_people_may_do_what_their_roles_say(site: Site) -> None:
    with site.release():
        established(site)
        for role in ("view", "edit", "admin"):
            site.cluster.must(
                "create", "rolebinding", f"{role}er", f"--clusterrole={role}", f"--user={role}er", "-n", "team-a"
            )
        # The controller that fills view, edit and admin takes a moment.
        filled = (("viewer", "get"), ("editer", "create"), ("adminer", "delete"))
        until(20, "the roles are filled", lambda: all(can(site, user, verb, CRD, "team-a") for user, verb in filled))
        manifest = json.dumps({**JOB, "metadata": {"name": "of-ana", "namespace": "team-a"}})
        denied = site.cluster.kubectl("apply", "--as=viewer", "-f", "-", stdin=manifest)
        assert denied.returncode != 0
        assert (
            'User "viewer" cannot create resource "lorarljobs"' in denied.stderr
            or 'forbidden: User "viewer"' in denied.stderr
        )
        site.cluster.must("apply", "--as=editer", "-f", "-", stdin=manifest)
        site.cluster.must("get", "lrj", "of-ana", "-n", "team-a", "--as=viewer")
        assert not can(site, "viewer", "delete", CRD, "team-a")
        assert not can(site, "adminer", "patch", f"{CRD}/status", "team-a")
        assert not can(site, "editer", "create", CRD, "team-b")


def test_the_operators_account_can_grant_a_jobs_right_and_no_other(site: Site) -> None:
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
        until(10, "the right has arrived", lambda: _patched(trainer, "x"))
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


def test_the_pods_are_admitted_where_only_restricted_ones_are(site: Site) -> None:
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


def test_every_object_of_every_value_is_taken_by_the_api_server(site: Site) -> None:
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


def _version(site: Site) -> tuple[int, Any]:
    crd = site.cluster.api.get("CustomResourceDefinition", CRD)
    assert crd is not None
    return crd["metadata"]["generation"], crd["metadata"].get("labels")


def _owner(site: Site) -> str:
    """The namespace of the release that the CRD belongs to."""
    crd = site.cluster.api.get("CustomResourceDefinition", CRD)
    assert crd is not None
    namespace: str = crd["metadata"]["annotations"]["meta.helm.sh/release-namespace"]
    return namespace


def _patched(trainer: Any, name: str) -> bool:
    try:
        trainer.patch("LoRARLJob", name, {"status": {"step": 1}}, "team-a", subresource="status")
    except ApiError as error:
        if error.status == 403:
            return False
        raise
    return True
