"""Several replicas, restarts and namespaces: nothing is done twice, and nothing outside the served namespaces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from support.cluster.client import Api, ApiError, Object
from support.cluster.control_plane import Cluster, control_plane
from support.cluster.crds import CRD, install_crds
from support.cluster.kuberay import install_kuberay
from support.cluster.lorarljobs import lorarljob, phase
from support.cluster.operator import SYSTEM, Operator, create, operator, prepare, quiet, wait_leader
from support.cluster.processes import find_share, until
from support.cluster.tools import tools_or_skip
from support.tcp_gate import TcpGate
from unit.contract.manifests import UNSEEN


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """An API server for this file: KubeRay's kinds are missing at first."""
    with tools_or_skip():
        find_share("ray-operator")
        with control_plane(tmp_path_factory.mktemp("replicas")) as running:
            install_crds(running, CRD)
            yield running


@pytest.mark.long
def test_without_kuberay_it_is_not_ready_and_says_how_to_get_it(cluster: Cluster) -> None:
    """This must be the first test of this file: the fixture below installs what is missing here."""
    with operator(cluster, prepare(cluster), "no-kuberay") as replica:
        text = until(20, "it says what is missing", lambda: _missing(replica))
        assert "RayJob (ray.io/v1)" in text and "--repo https://ray-project.github.io/kuberay-helm" in text
        assert replica.probe("/healthz") == (200, "ok\n")
        install_kuberay(cluster)
        until(30, "it is ready when KubeRay is installed", lambda: replica.probe("/readyz")[0] == 200)


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Cluster:
    """An API server with KubeRay's kinds but without KubeRay: RayJobs stay as they are created."""
    if not any(group["name"] == "ray.io" for group in cluster.api.request("GET", "/apis")["groups"]):
        install_kuberay(cluster)
    return cluster


def namespace(cluster: Cluster, name: str) -> str:
    create(cluster, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return name


def rayjobs(cluster: Cluster, where: str) -> list[Object]:
    return sorted(cluster.api.list("RayJob", where), key=lambda one: str(one["metadata"]["name"]))


def writes(*replicas: Operator) -> Counter[str]:
    """Writes about jobs, without the lease and Events, by verb and resource."""
    counted: Counter[str] = Counter()
    for one in replicas:
        for labels, value in one.samples("lorarl_operator_api_writes_total"):
            if labels["resource"] not in ("leases", "events"):
                counted[f"{labels['verb']} {labels['resource']}"] += int(value)
    return counted


@pytest.mark.long
def test_after_a_killed_leader_nothing_is_done_twice(served: Cluster) -> None:
    where, kubeconfig = namespace(served, "handover"), prepare(served)
    with ExitStack() as stack:
        replicas = [stack.enter_context(operator(served, kubeconfig, name)) for name in ("first", "second")]
        leader = wait_leader(*replicas)
        standby = next(one for one in replicas if one is not leader)
        until(10, "the standby is ready", lambda: standby.probe("/readyz") == (200, "ok\n"))
        for number in range(5):
            served.api.create(lorarljob(where, f"before-{number}"))
        until(10, "all RayJobs exist", lambda: len(rayjobs(served, where)) == 5)
        quiet(2, lambda: writes(leader))
        first_uids = [one["metadata"]["uid"] for one in rayjobs(served, where)]

        leader.process.kill()
        served.api.create(lorarljob(where, "after"))
        served.api.wait("RayJob", "after-1", where, bool, seconds=20)
        assert standby.leads
        quiet(2, lambda: writes(standby))
        assert [one["metadata"]["uid"] for one in rayjobs(served, where)][1:] == first_uids
        assert writes(standby)["create rayjobs"] == 1


def test_a_stopped_leader_hands_over_at_once(served: Cluster) -> None:
    where, kubeconfig = namespace(served, "handover-clean"), prepare(served)
    with ExitStack() as stack:
        replicas = [stack.enter_context(operator(served, kubeconfig, name)) for name in ("third", "fourth")]
        leader = wait_leader(*replicas)
        standby = next(one for one in replicas if one is not leader)
        leader.process.stop()
        served.api.create(lorarljob(where, "next"))
        served.api.wait("RayJob", "next-1", where, bool, seconds=8)
        assert standby.leads
    lease = served.api.get("Lease", "lorarl-operator", SYSTEM)
    assert lease is not None and not lease["spec"].get("holderIdentity"), "the last one has released it too"


@pytest.mark.long
def test_a_restart_writes_nothing_about_unchanged_jobs(served: Cluster) -> None:
    where, kubeconfig = namespace(served, "restart"), prepare(served)
    with operator(served, kubeconfig, "before-restart") as replica:
        wait_leader(replica)
        for number in range(10):
            served.api.create(lorarljob(where, f"job-{number}", suspend=number % 2 == 0))
        until(
            20,
            "all are decided",
            lambda: all(phase(job) in ("Suspended", "Starting", "Pending") for job in jobs(served, where)),
        )
        quiet(13, lambda: writes(replica))
    versions = [job["metadata"]["resourceVersion"] for job in jobs(served, where)]
    with operator(served, kubeconfig, "after-restart") as replica:
        wait_leader(replica)
        until(20, "all jobs are known", lambda: replica.metric("lorarl_jobs") >= 10)
        until(20, "all watches run", lambda: replica.metric("lorarl_operator_watches") == 6)
        quiet(6, lambda: replica.metric("lorarl_operator_watch_events_total"))
        assert not {one: count for one, count in writes(replica).items() if "create" in one or "delete" in one}
        assert [job["metadata"]["resourceVersion"] for job in jobs(served, where)] == versions


def test_only_the_listed_namespaces_are_served(served: Cluster) -> None:
    ours, theirs = namespace(served, "team-a"), namespace(served, "team-b")
    kubeconfig = prepare(served, (ours,), account="team-operator")
    with operator(served, kubeconfig, "namespaced", f"--namespace={ours}", "--lease-name=team-a") as replica:
        wait_leader(replica)
        until(20, "all watches run", lambda: replica.metric("lorarl_operator_watches") == 6)
        for where in (theirs, ours):
            served.api.create(lorarljob(where, "job"))
        rayjob = served.api.wait("RayJob", "job-1", ours, bool, seconds=5)
        assert "LORARL_CLUSTER" not in str(rayjob), "Roles in some namespaces do not reach kube-system"
        served.api.wait("LoRARLJob", "job", ours, phase)
        quiet(2, lambda: writes(replica))
        assert rayjobs(served, theirs) == []
        assert (served.api.get("LoRARLJob", "job", theirs) or {})["status"] == UNSEEN
        assert replica.metric("lorarl_operator_errors_total") == 0


def test_a_namespace_without_its_rolebinding_delays_no_other(served: Cluster) -> None:
    """It is served as soon as the RoleBinding is back."""
    teams, account = [namespace(served, name) for name in ("bound-again", "bound-late")], "bound-operator"
    kubeconfig = prepare(served, teams, account=account)
    for where in teams:
        served.api.create(lorarljob(where, "job"))
        served.api.delete("RoleBinding", account, where)
    narrow = served.api_as(served.service_account_token(SYSTEM, account))
    until(10, "the API server has dropped the permissions", lambda: all(_is_refused(narrow, where) for where in teams))
    options = [*(f"--namespace={where}" for where in teams), "--lease-name=bound"]
    with operator(served, kubeconfig, "bound", *options) as replica:
        wait_leader(replica)
        until(
            20,
            "it reports that it can list nothing",
            lambda: f"namespace {teams[0]} cannot be listed" in replica.probe("/readyz")[1],
        )
        assert (replica.probe("/readyz")[0], replica.probe("/healthz")) == (503, (200, "ok\n"))

        prepare(served, teams[:1], account=account)
        served.api.wait("RayJob", "job-1", teams[0], bool, seconds=40)
        assert replica.probe("/readyz") == (200, "ok\n")
        assert (replica.metric("lorarl_operator_namespaces_unlisted"), rayjobs(served, teams[1])) == (1, [])

        prepare(served, teams[1:], account=account)
        served.api.wait("RayJob", "job-1", teams[1], bool, seconds=40)
        until(20, "all can be listed", lambda: replica.metric("lorarl_operator_namespaces_unlisted") == 0)
        # Its watches run too, now or soon.
        served.api.create(lorarljob(teams[1], "next"))
        served.api.wait("RayJob", "next-1", teams[1], bool, seconds=20)
        assert [len(rayjobs(served, where)) for where in teams] == [1, 2]
    errors = [line for line in replica.process.log.read_text().splitlines() if "cannot be listed" in line]
    assert len(errors) == 2
    assert all("ERROR" in line and "403 Forbidden" in line for line in errors), errors
    assert all(
        any(f"helm upgrade, or remove {where} from watchNamespaces" in line for line in errors) for where in teams
    ), errors


def _is_refused(api: Api, where: str) -> bool:
    try:
        api.list("LoRARLJob", where)
    except ApiError as error:
        return error.status == 403
    return False


def jobs(cluster: Cluster, where: str) -> list[Object]:
    return sorted(cluster.api.list("LoRARLJob", where), key=lambda one: str(one["metadata"]["name"]))


def _missing(replica: Operator) -> str:
    text = replica.probe("/readyz")[1]
    return text if "no RayJob" in text else ""


@pytest.mark.long
def test_a_disconnected_leader_stops_and_another_continues(served: Cluster) -> None:
    where, kubeconfig = namespace(served, "cut-off"), prepare(served)
    token = served.service_account_token(SYSTEM, "lorarl-operator")
    with ExitStack() as stack:
        gate = stack.enter_context(TcpGate(served.port))
        cut = stack.enter_context(operator(served, gate.kubeconfig(served, token), "cut"))
        wait_leader(cut)
        served.api.create(lorarljob(where, "before"))
        served.api.wait("RayJob", "before-1", where, bool, seconds=5)
        standby = stack.enter_context(operator(served, kubeconfig, "uncut"))
        gate.shut()
        served.api.create(lorarljob(where, "after"))
        assert cut.process.wait(60) == 1, "the kubelet must restart its container"
        assert "was not renewed for 10 s" in cut.process.log.read_text()
        served.api.wait("RayJob", "after-1", where, bool, seconds=12)
        assert standby.leads
        quiet(2, lambda: writes(standby))
        assert writes(standby)["create rayjobs"] == 1
