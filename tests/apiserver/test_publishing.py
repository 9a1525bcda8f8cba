"""Adapters reach AIBrix's servers behind a gate: its own kinds, a real API server, and the operator with its rights.

KubeRay does not run: the jobs are suspended, and tests report what a training would.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import yaml
from aiohttp import web

from support.cluster import aibrix
from support.cluster.aibrix import KIND, loads, names
from support.cluster.api_proxy import Call, api_proxy
from support.cluster.audit import granted, refused, used, writes
from support.cluster.client import ApiError, Object
from support.cluster.control_plane import Cluster, control_plane
from support.cluster.crds import install_crds
from support.cluster.lorarljobs import condition, events, phase, wait_event
from support.cluster.operator import RIGHTS, SYSTEM, create, grant_target, operator, prepare, wait_leader
from support.cluster.processes import find_share, until
from support.cluster.publishing import (
    ACCOUNT,
    OPERATOR,
    PAGE,
    SECONDS,
    entry,
    from_page,
    install,
    leading,
    reports,
    wait_state,
)
from support.cluster.tools import tools_or_skip
from support.published import best, model

MANIFEST: Object = yaml.safe_load(PAGE.partition("```yaml\n")[2].partition("```")[0])
ENTRY: Object = MANIFEST["spec"]["publish"][0] | {"minimum": 0.5}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """An API server with our kinds and KubeRay's. AIBrix is not installed at first."""
    with tools_or_skip():
        find_share("ray-operator")
        with control_plane(tmp_path_factory.mktemp("publishing"), audit=True) as running:
            install(running)
            yield running


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Cluster:
    """The same with AIBrix's kinds, and with the operator's rights on them."""
    if not any(group["name"] == "model.aibrix.ai" for group in cluster.api.request("GET", "/apis")["groups"]):
        install_crds(cluster, aibrix.CRD)
    prepare(cluster, account=ACCOUNT)
    grant_target(cluster, "aibrix", ACCOUNT)
    return cluster


def namespace(cluster: Cluster, name: str) -> str:
    create(cluster, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return name


def job(where: str, entry: Object = ENTRY) -> Object:
    """The page's job with an entry, and with the entry's name; it is suspended."""
    about = {"name": entry["name"], "namespace": where}
    return MANIFEST | {"metadata": about, "spec": MANIFEST["spec"] | {"suspend": True, "publish": [entry]}}


@pytest.mark.long
def test_a_cluster_without_aibrix_or_without_the_right_to_it_says_so(cluster: Cluster) -> None:
    """This must be the first test of this file: the fixture `served` installs what is missing here."""
    where = namespace(cluster, "missing")
    with leading(cluster, "missing"):
        cluster.api.create(job(where))
        said = wait_state(cluster, where, "Failed", "NotInstalled")
        assert "Install AIBrix" in said["message"]
        install_crds(cluster, aibrix.CRD)
        said = wait_state(cluster, where, "Failed", "Forbidden")
        assert "publish.aibrix.enabled=true" in said["message"]
        assert "publish sums: The operator may not list" in wait_event(cluster.api, where, "sums", "Forbidden")
        found = cluster.api.get("LoRARLJob", "sums", where)
        assert found and phase(found) == "Suspended", "the training does what it does without it"
        reports(cluster, where, 10, 0.6)
        grant_target(cluster, "aibrix", ACCOUNT)
        cluster.api.wait(KIND, model(10), where, bool, seconds=SECONDS)
        cluster.api.delete("LoRARLJob", "sums", where)


def test_the_jobs_of_a_schedule_publish_in_turn(served: Cluster) -> None:
    where = namespace(served, "nightly")
    spec = {"schedule": "0 3 * * *", "suspend": True, "template": {"spec": MANIFEST["spec"] | {"publish": [ENTRY]}}}
    kind = {"apiVersion": "lorarl.io/v1alpha1", "kind": "LoRARLSchedule"}
    schedule = served.api.create({**kind, "metadata": {"name": "nightly", "namespace": where}, "spec": spec})
    owner = {**kind, "name": "nightly", "uid": schedule["metadata"]["uid"], "controller": True}
    first, second = "nightly-r0000001", "nightly-r0000002"

    def start(name: str) -> None:
        about = {"name": name, "namespace": where, "ownerReferences": [owner]}
        served.api.create(job(where) | {"metadata": about})

    with leading(served, "nightly"):
        start(first)
        reports(served, where, 10, 0.6, first)
        served.api.wait(KIND, model(10), where, bool, seconds=SECONDS)
        loads(served.api, where, model(10))
        wait_state(served, where, "Serving", "Serving", first, serves=model(10))
        start(second)
        wait_state(served, where, "Waiting", "Superseded", first)
        wait_state(served, where, "Serving", "Serving", second, serves=model(10))
        reports(served, where, 20, 0.55, second)
        served.api.wait(
            "LoRARLJob", second, where, lambda one: "is not better than 0.6" in entry(one)["message"], seconds=SECONDS
        )
        reports(served, where, 30, 0.8, second)
        served.api.wait(KIND, model(30), where, bool, seconds=SECONDS)
        loads(served.api, where, model(30))
        wait_state(served, where, "Serving", "Serving", second, serves=model(30))
        served.api.wait_gone(KIND, model(10), where, seconds=SECONDS)
        assert names(served.api, where) == {model(30)}


def test_the_best_is_published_replaced_and_rolled_back(served: Cluster) -> None:
    where = namespace(served, "whole")
    others = served.api.create(
        {
            "apiVersion": "model.aibrix.ai/v1alpha1",
            "kind": KIND,
            "metadata": {"name": "sums-of-others", "namespace": where, "labels": {"lorarl.io/job": "sums"}},
            "spec": {"artifactURL": "s3://others/a", "podSelector": {"matchLabels": {"app": "theirs"}}},
        }
    )
    with leading(served, "whole"):
        from_page(served, where, "create secret", ENTRY["aibrix"]["credentialsSecret"])
        assert served.api.get("Secret", ENTRY["aibrix"]["credentialsSecret"], where)
        served.api.create(job(where))
        wait_state(served, where, "Waiting", "NoResult")
        reports(served, where, 5, 0.4)
        said = wait_state(served, where, "HeldBack", "BelowGate")
        assert "eval_score 0.4 < 0.5" in said["message"] and names(served.api, where) == {"sums-of-others"}
        reports(served, where, 10, 0.6)
        wait_state(served, where, "Waiting", "Loading")
        made = served.api.wait(KIND, model(10), where, bool, seconds=SECONDS)
        assert made["spec"] == {
            "artifactURL": best(10, 0.6)["uri"] + "/",
            "baseModel": "qwen2-5-0-5b",
            "credentialsSecretRef": {"name": "aibrix-s3-keys"},
            "podSelector": {"matchLabels": {"model.aibrix.ai/name": "qwen2-5-0-5b"}},
            "schedulerName": "default",
        }
        loads(served.api, where, model(10))
        wait_state(served, where, "Serving", "Serving", serves=model(10))
        assert from_page(served, where, "get lrj -o wide", "").split()[-1] == model(10)
        assert from_page(served, where, "get lrj sums", "jsonpath") == model(10)
        from_page(served, where, "wait", "Published")
        reports(served, where, 20, 0.8)
        served.api.wait(KIND, model(20), where, bool, seconds=SECONDS)
        aibrix.fails(served.api, where, model(20), "LoRA rank 8 is greater than max_lora_rank 4")
        said = wait_state(served, where, "Failed", "LoadFailed", serves=model(10))
        assert "max_lora_rank 4" in said["message"] and f"{model(10)} answers meanwhile" in said["message"]
        loads(served.api, where, model(20))
        wait_state(served, where, "Serving", "Serving", serves=model(20))
        served.api.wait_gone(KIND, model(10), where, seconds=SECONDS)
        moved = ENTRY | {"aibrix": {"podSelector": {"pool": "b"}}}
        served.api.patch("LoRARLJob", "sums", {"spec": {"publish": [moved]}}, where)
        served.api.wait(KIND, model(20), where, lambda one: selected(one) == {"pool": "b"}, seconds=SECONDS)
        from_page(served, where, "patch", '"value": 10')
        served.api.wait(KIND, model(10), where, bool, seconds=SECONDS)
        loads(served.api, where, model(10))
        wait_state(served, where, "Serving", "Pinned", serves=model(10))
        served.api.wait_gone(KIND, model(20), where, seconds=SECONDS)
        shown = from_page(served, where, "describe", "sums")
        assert f"{model(10)} answers: 2 of 2 pods have it." in shown
        from_page(served, where, "patch", '"remove", "path": "/spec/publish/0/step"')
        served.api.wait(KIND, model(20), where, bool, seconds=SECONDS)
        from_page(served, where, "patch", '"remove", "path": "/spec/publish"')
        until(SECONDS, "nothing of it is left", lambda: names(served.api, where) == {"sums-of-others"})
        wait_event(served.api, where, "sums", "Withdrawn")
        left = served.api.wait("LoRARLJob", "sums", where, lambda one: "published" not in one["status"])
        assert not condition(left, "Published") and condition(left, "Suspended")["status"] == "True"
    now = served.api.get(KIND, "sums-of-others", where)
    assert now and now["metadata"]["resourceVersion"] == others["metadata"]["resourceVersion"]
    told_reasons = {one["reason"] for one in events(served.api, where, "sums")}
    assert told_reasons >= {"BelowGate", "Loading", "Serving", "LoadFailed", "Pinned", "Withdrawn"}


def selected(adapter: Object) -> Object:
    labels: Object = adapter["spec"]["podSelector"]["matchLabels"]
    return labels


def test_an_operator_that_was_away_continues_and_does_nothing_twice(served: Cluster) -> None:
    where = namespace(served, "away")
    with leading(served, "away-1"):
        served.api.create(job(where))
        reports(served, where, 10, 0.6)
        served.api.wait(KIND, model(10), where, bool, seconds=SECONDS)
    loads(served.api, where, model(10))
    reports(served, where, 20, 0.7)
    with leading(served, "away-2"):
        served.api.wait(KIND, model(20), where, bool, seconds=SECONDS)
        assert names(served.api, where) == {model(10), model(20)}
    loads(served.api, where, model(20))
    with leading(served, "away-3"):
        wait_state(served, where, "Serving", "Serving", serves=model(20))
        served.api.wait_gone(KIND, model(10), where, seconds=SECONDS)
    made = [one for one in writes(served.audit_log, OPERATOR, where) if "modeladapters" in one]
    assert [one.split()[0] for one in made] == ["create", "create", "delete"], made


def test_what_is_served_outlives_its_job_and_the_next_one_knows_it(served: Cluster) -> None:
    where = namespace(served, "outlives")
    with leading(served, "outlives"):
        served.api.create(job(where))
        reports(served, where, 30, 0.8)
        served.api.wait(KIND, model(30), where, bool, seconds=SECONDS)
        loads(served.api, where, model(30))
        wait_state(served, where, "Serving", "Serving", serves=model(30))
        served.api.delete("LoRARLJob", "sums", where)
        served.api.wait_gone("LoRARLJob", "sums", where, seconds=SECONDS)
        served.api.create(job(where))
        reports(served, where, 10, 0.6)
        said = wait_state(served, where, "Serving", "Serving", serves=model(30))
        assert said["version"]["step"] == 30
        assert names(served.api, where) == {model(30)}
        served.api.delete("LoRARLJob", "sums", where)
        from_page(served, where, "delete modeladapters", "")
        assert not names(served.api, where)


def test_a_name_that_is_taken_is_never_taken_over(served: Cluster) -> None:
    where = namespace(served, "taken")
    about = {"name": model(10), "namespace": where}
    spec = {"artifactURL": "s3://others/a", "podSelector": {"matchLabels": {"app": "theirs"}}}
    foreign = {"apiVersion": "model.aibrix.ai/v1alpha1", "kind": KIND, "metadata": about, "spec": spec}
    served.api.create(foreign)
    with leading(served, "taken"):
        served.api.create(job(where))
        reports(served, where, 10, 0.6)
        wait_state(served, where, "Failed", "NameTaken")
        found = served.api.get(KIND, model(10), where)
        assert found and found["spec"]["artifactURL"] == "s3://others/a"
        served.api.delete(KIND, model(10), where)
        served.api.wait(
            KIND,
            model(10),
            where,
            lambda one: one["spec"]["artifactURL"] == best(10, 0.6)["uri"] + "/",
            seconds=SECONDS,
        )


@pytest.mark.long
def test_a_slow_api_of_the_servers_delays_no_training(served: Cluster) -> None:
    where, hangs, struck = namespace(served, "slow"), threading.Event(), []
    hangs.set()

    async def strike(call: Call) -> web.StreamResponse:
        if "modeladapters" not in call.path:
            return await call.forward()
        if hangs.is_set():
            struck.append("hang")
            return await call.hang(60)
        if call.writes and struck.count("conflict") < 2:
            struck.append("conflict")
            return call.answer(409, "Conflict", "the object has been modified")
        return await call.forward()

    with api_proxy(served) as proxy:
        proxy.intercept = strike
        prepare(served, account=ACCOUNT)
        kubeconfig = proxy.kubeconfig(served, "slow", served.service_account_token(SYSTEM, ACCOUNT))
        with operator(served, kubeconfig, "slow") as one:
            wait_leader(one)
            for number in range(6):  # more than the publisher has workers
                served.api.create(job(where, ENTRY | {"name": f"sums-{number}"}))
                reports(served, where, 10, 0.6, name=f"sums-{number}")
            until(SECONDS, "the API of the servers hangs", lambda: len(struck) >= 4)
            served.api.patch("LoRARLJob", "sums-0", {"spec": {"suspend": False}}, where)
            served.api.wait("RayJob", "sums-0-1", where, bool, seconds=10)
            hangs.clear()
            for number in range(6):
                name = f"sums-{number}"
                served.api.wait(KIND, model(10, name), where, bool, seconds=90)
    assert struck.count("conflict") == 2


def test_the_charts_policy_keeps_the_operator_from_adapters_of_others(served: Cluster) -> None:
    where = namespace(served, "policy")
    stolen = served.api_as(served.service_account_token(SYSTEM, ACCOUNT))
    theirs = {"artifactURL": "s3://others/a", "podSelector": {"matchLabels": {"app": "theirs"}}}
    labels = {"app.kubernetes.io/managed-by": "lorarl", "lorarl.io/publish": "sums"}
    made = {"apiVersion": "model.aibrix.ai/v1alpha1", "kind": KIND, "spec": theirs}
    served.api.create(made | {"metadata": {"name": "theirs", "namespace": where}})
    asked: list[Callable[[], object]] = [
        lambda: stolen.create(made | {"metadata": {"name": "new", "namespace": where}}),
        lambda: stolen.patch(KIND, "theirs", {"metadata": {"labels": labels}}, where),
        lambda: stolen.delete(KIND, "theirs", where),
    ]
    for one in asked:
        with pytest.raises(ApiError, match="may write only objects that a LoRARLJob owns"):
            one()
    ours = {"name": "ours", "namespace": where, "labels": labels}
    stolen.create(made | {"metadata": ours})
    stolen.delete(KIND, "ours", where)


def test_the_operator_uses_all_its_rights_on_modeladapters_and_no_others(served: Cluster) -> None:
    """This must run after the others of this file."""
    rules: list[Object] = yaml.safe_load(RIGHTS.read_text())["aibrix"]
    needed = {one for one in used(served.audit_log, OPERATOR) if one.group == "model.aibrix.ai"}
    assert granted(rules) == needed
    early = [one for one in refused(served.audit_log, OPERATOR) if "/missing/" not in one]
    assert all("may write only objects that a LoRARLJob owns" in one for one in early)
