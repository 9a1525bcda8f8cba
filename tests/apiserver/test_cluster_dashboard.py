"""The dashboard of a cluster, against a real API server: who sees what, and what it says when something fails."""

from __future__ import annotations

import base64
import json
import re
import shlex
import time
from collections.abc import Iterator
from functools import partial
from http import HTTPStatus
from pathlib import Path

import jwt
import pytest

from apiserver.dashboard_site import (
    SECONDS,
    Page,
    account,
    dashboard,
    grant,
    job,
    may_list,
    may_review,
    report,
    running,
    token_of,
    unclosed,
)
from lorarl_trainer.dashboard.cluster.access import FRESH_SECONDS, LONGEST_SECONDS
from lorarl_trainer.dashboard.cluster.jobs import QUEUE_LABEL
from lorarl_trainer.storage import LocalStore
from support.cluster.client import Object, path_of
from support.cluster.control_plane import SERVICE_ACCOUNT_KEY, Cluster
from support.cluster.lorarljobs import lorarljob
from support.cluster.processes import find, until
from support.cluster.tools import tools_or_skip
from support.helm import CHART, of, rendered
from unit.trainer.dashboard.recorded import recorded

WAITS = "Kueue: no quota for 8 GPUs in the flavor h100"
ATTACK = "<script>alert(1)</script><img src=x onerror=alert(2)>"
READERS = ("alice", "bob", "nobody-yet")


@pytest.fixture(scope="module")
def site(cluster: Cluster) -> Cluster:
    """Two teams, with a reader each, one who may see nothing, and the chart's account for the dashboard."""
    api = cluster.api
    with tools_or_skip():
        find("helm")
    for namespace in ("lorarl-system", "team-a", "team-b"):
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    for reader in READERS:
        api.create(account("team-a", reader))
    grant(cluster, "team-a", "alice")
    grant(cluster, "team-b", "bob")
    made = rendered({"dashboard.enabled": True})
    for one in of(made, "ServiceAccount") + of(made, "ClusterRole") + of(made, "ClusterRoleBinding"):
        if "dashboard" in one["metadata"]["name"]:
            api.create(one)
    job(cluster, "team-a", "sums", labels={QUEUE_LABEL: "research"})
    report(cluster, "team-a", "sums", phase="Running", gpus=8, heldGpuSeconds=7200, step=4, totalSteps=10)
    job(cluster, "team-a", "waits", labels={QUEUE_LABEL: "research"})
    report(cluster, "team-a", "waits", phase="Pending", conditions=[running("Queued", WAITS)])
    job(cluster, "team-b", "quiet")
    for reader, namespace in (("alice", "team-a"), ("bob", "team-b")):
        until(SECONDS, "rights hold", partial(may_list, cluster, token_of(cluster, reader), namespace))
    until(SECONDS, "the dashboard's rights hold", partial(may_review, cluster))
    return cluster


@pytest.fixture(scope="module")
def page(site: Cluster) -> Iterator[Page]:
    with dashboard(site) as one:
        one.shows(site.tokens["admin"], "waits")
        yield one


def test_a_reader_sees_the_jobs_of_their_namespaces_and_why_they_wait(site: Cluster, page: Page) -> None:
    text = page.shows(token_of(site, "alice"), "waits").text
    assert "As system:serviceaccount:team-a:alice may list them" in text
    assert f"Queued: {WAITS}" in text and '<span class="state pending">Pending</span>' in text
    assert "4<small" in text and ">2.0</td>" in text, "the step, and the GPU-hours held"
    assert "GPU time by namespace" in text and "team-a/research</th>" in text
    assert "2 jobs" in text
    only = page.get(token_of(site, "alice"), "?reason=Queued").text
    assert "1 of 2 jobs" in only and "job/team-a/sums/" not in only


def test_a_namespace_that_one_may_not_see_is_not_named(site: Cluster, page: Page) -> None:
    alice, bob, other = (token_of(site, reader) for reader in READERS)
    page.shows(bob, "quiet")
    paths = ("", "?namespace=team-b", "job/team-b/quiet/", "job/team-b/quiet/report/")
    for path in (*paths, "job/team-b/quiet/report/data.json", "compare?run=team-b/quiet&run=team-a/sums"):
        for token in (alice, other):
            text = page.get(token, path).text
            assert "quiet" not in text, path
            assert "team-b" not in text.replace('value="team-b"', "").replace("namespace=team-b", ""), path
    absent, secret = (page.get(alice, f"job/team-b/{name}/") for name in ("never", "quiet"))
    assert (absent.status, absent.text.replace("never", "quiet")) == (secret.status, secret.text)
    assert "There are no LoRARLJobs in the namespaces where" in page.get(other).text


def test_the_cluster_administrator_sees_all(site: Cluster, page: Page) -> None:
    text = page.shows(site.tokens["admin"], "quiet").text
    assert "As admin may list them" in text and "waits" in text


def test_without_a_token_or_with_a_bad_one_the_page_says_what_to_do(site: Cluster, page: Page) -> None:
    refused = page.client.get()
    assert refused.status == HTTPStatus.UNAUTHORIZED and "kubectl create token" in refused.text
    assert refused.headers["WWW-Authenticate"].startswith("Basic")
    good = token_of(site, "alice")
    claims = jwt.decode(good, options={"verify_signature": False})
    key = (site.folder / SERVICE_ACCOUNT_KEY).read_text()
    past = claims | {"iat": int(time.time()) - 7200, "nbf": int(time.time()) - 7200, "exp": int(time.time()) - 3600}
    header = {"kid": jwt.get_unverified_header(good)["kid"]}
    expired = jwt.encode(past, key, algorithm="ES256", headers=header)
    assert page.get(jwt.encode(claims, key, algorithm="ES256", headers=header)).status == HTTPStatus.OK
    for token in (expired, "wrong", good[:-2]):
        answer = page.get(token)
        assert answer.status == HTTPStatus.UNAUTHORIZED and "it has expired, was withdrawn" in answer.text
        assert "sums" not in answer.text
    assert page.client.get("healthz").text == "ok"


def test_a_token_comes_as_a_password_or_in_small_letters(site: Cluster, page: Page) -> None:
    token = token_of(site, "alice")
    password = base64.b64encode(f"anyone:{token}".encode()).decode()
    assert "waits" in page.client.get(Authorization=f"Basic {password}").text
    assert "waits" in page.client.get(authorization=f"bearer {token}").text


def test_jobs_come_change_and_go(site: Cluster, page: Page) -> None:
    alice = token_of(site, "alice")
    job(site, "team-a", "short-lived")
    page.shows(alice, "short-lived")
    report(site, "team-a", "short-lived", phase="Failed", conditions=[running("RewardFailed", "no such function")])
    page.shows(alice, "RewardFailed: no such function")
    detail = page.get(alice, "job/team-a/short-lived/").text
    assert "Conditions" in detail and "no such function" in detail
    site.api.delete("LoRARLJob", "short-lived", "team-a")
    until(SECONDS, "it is gone", lambda: "short-lived" not in page.get(alice).text)
    assert page.get(alice, "job/team-a/short-lived/").status == HTTPStatus.NOT_FOUND


def test_a_right_that_is_withdrawn_or_given_counts_after_some_seconds(site: Cluster, page: Page) -> None:
    site.api.create(account("team-a", "carol"))
    name, carol = grant(site, "team-a", "carol"), token_of(site, "carol")
    until(SECONDS, "the API server allows", lambda: may_list(site, carol))
    assert "waits" in page.get(carol).text
    site.api.delete("RoleBinding", name, "team-a")
    until(SECONDS, "the API server refuses", lambda: not may_list(site, carol))
    assert "waits" in page.get(carol).text, "an answer is kept for some seconds"
    page.clock.ahead += FRESH_SECONDS
    assert "waits" not in page.get(carol).text
    grant(site, "team-a", "carol")
    until(SECONDS, "the API server allows", lambda: may_list(site, carol))
    page.clock.ahead += FRESH_SECONDS
    assert "waits" in page.get(carol).text


@pytest.mark.long
def test_the_token_of_a_deleted_account_is_refused(site: Cluster, page: Page) -> None:
    """Long because the API server itself takes such a token for ten more seconds."""
    site.api.create(account("team-a", "dave"))
    dave = token_of(site, "dave")
    assert page.get(dave).status == HTTPStatus.OK
    site.api.delete("ServiceAccount", "dave", "team-a")

    def refused() -> bool:
        page.clock.ahead += FRESH_SECONDS
        return page.get(dave).status == HTTPStatus.UNAUTHORIZED

    until(SECONDS, "the token is refused", refused)


def test_while_the_api_server_is_away_the_page_shows_what_it_knows(site: Cluster) -> None:
    with dashboard(site) as page:
        alice, bob = token_of(site, "alice"), token_of(site, "bob")
        page.shows(alice, "waits")
        page.gate.shut()
        page.shows(alice, "no answer from the API server")
        page.clock.ahead += FRESH_SECONDS
        text = page.get(alice).text
        assert f"Queued: {WAITS}" in text and "The rows below are what was known then" in text
        known = page.get(alice, "job/team-a/waits/").text
        assert "this is what was known of it" in known and WAITS in known
        unknown = page.get(bob)
        assert unknown.status == HTTPStatus.SERVICE_UNAVAILABLE and "Try again soon" in unknown.text
        assert "quiet" not in unknown.text
        page.clock.ahead += LONGEST_SECONDS
        assert page.get(alice).status == HTTPStatus.SERVICE_UNAVAILABLE, "a token may have expired since"
        job(site, "team-a", "came-meanwhile")
        page.gate.open()
        page.clock.ahead += FRESH_SECONDS
        text = page.shows(alice, "came-meanwhile").text
        assert "no answer from the API server" not in text
        site.api.delete("LoRARLJob", "came-meanwhile", "team-a")


def test_an_account_without_its_rights_says_which(site: Cluster, page: Page) -> None:
    binding = site.api.get("ClusterRoleBinding", "lorarl-system:lorarl-dashboard")
    assert binding is not None
    alice = token_of(site, "alice")
    site.api.delete("ClusterRoleBinding", binding["metadata"]["name"])
    until(SECONDS, "the API server refuses", lambda: not may_review(site))
    try:
        with dashboard(site) as other:
            answer = other.shows(alice, "tokenreviews")
            assert answer.status == HTTPStatus.SERVICE_UNAVAILABLE and "need its rights back" in answer.text
            page.clock.ahead += FRESH_SECONDS
            assert page.get(alice).status == HTTPStatus.SERVICE_UNAVAILABLE, "no old answer counts after a refusal"
            restore(site, binding)
            other.shows(alice, "waits")
    finally:
        restore(site, binding)


def restore(site: Cluster, binding: Object) -> None:
    meta = {key: binding["metadata"][key] for key in ("name", "labels")}
    site.api.apply({key: binding[key] for key in ("apiVersion", "kind", "roleRef", "subjects")} | {"metadata": meta})


def test_a_dashboard_of_some_namespaces_asks_for_no_others(site: Cluster) -> None:
    with dashboard(site, namespaces=("team-a",)) as page:
        text = page.shows(site.tokens["admin"], "waits").text
        assert "quiet" not in text


def test_a_job_opens_its_report_and_no_one_elses(site: Cluster, tmp_path: Path) -> None:
    """A job's pods write the record's name into its status, so they may name one of another team's job."""
    store = LocalStore(tmp_path / "adapters")
    quiet = site.api.request("GET", path_of("LoRARLJob", "team-b", "quiet"))["metadata"]["uid"]
    alice, names = token_of(site, "alice"), ("trained", "later", "borrowed")
    uids = {name: job(site, "team-a", name)["metadata"]["uid"] for name in names}
    for name, uid in (uids | {"borrowed": quiet, "quiet": quiet}).items():
        recorded(tmp_path / "adapters" / name / "runs/0001", 5, job=name)
        owner = {"job": name, "namespace": "team", "jobUid": uid, "cluster": None, "attempt": 1}
        run = owner | {"writer": "w", "host": "h", "startedAt": "2026-01-01T00:00:00Z"}
        store.put(f"{name}/runs/0001/run.json", json.dumps(run).encode())
        report(site, "team-a" if name != "quiet" else "team-b", name, record=f"{store.uri}/{name}/runs/0001")
    try:
        with dashboard(site, [store]) as page:
            for name in names:
                page.shows(alice, f'href="job/team-a/{name}/report/"')
            assert '"steps":[1,2,3,4,5]' in page.get(alice, "job/team-a/trained/report/").text
            data = json.loads(page.get(alice, "job/team-a/trained/report/data.json").text)
            assert len(data["samples"]["training"]) == 1
            compared = page.get(alice, "compare.json?run=team-a/trained&run=team-a/later").text
            assert [run["name"] for run in json.loads(compared)["runs"]] == ["trained", "later"]
            assert page.get(alice, "job/team-a/borrowed/report/").status == HTTPStatus.NOT_FOUND
            assert page.get(alice, "compare?run=team-a/trained&run=team-a/borrowed").status == HTTPStatus.NOT_FOUND
            for other in ("quiet", "../adapters/trained", "trained/../trained"):
                report(site, "team-a", "later", record=f"{store.uri}/{other}/runs/0001")
                until(SECONDS, "no link", lambda: "later/report/" not in page.get(alice).text)
                assert page.get(alice, "job/team-a/later/report/").status == HTTPStatus.NOT_FOUND
                report(site, "team-a", "later", record=f"{store.uri}/later/runs/0001")
                page.shows(alice, "later/report/")
            bob = token_of(site, "bob")
            assert "5 of 5" in page.get(bob, "job/team-b/quiet/report/").text
            assert page.get(bob, "job/team-a/trained/report/").status == HTTPStatus.NOT_FOUND
    finally:
        for name in names:
            site.api.delete("LoRARLJob", name, "team-a")


def test_no_text_of_a_job_is_markup_and_each_tag_is_closed(site: Cluster, page: Page) -> None:
    sweep = {"apiVersion": "lorarl.io/v1alpha1", "kind": "LoRARLSweep", "name": "rank", "uid": "u", "controller": True}
    manifest = lorarljob("team-b", "attack", model={"uri": f"s3://{ATTACK}"})
    for name in ("attack", "attack-2"):
        manifest["metadata"] |= {"name": name, "ownerReferences": [sweep]}
        site.api.create(manifest)
        report(site, "team-b", name, phase="Failed", conditions=[running("Failed", ATTACK)], record=ATTACK)
        report(site, "team-b", name, failure={"reason": "Failed", "message": ATTACK})
    bob = token_of(site, "bob")
    page.shows(bob, "sweep/rank/")
    try:
        listed = page.shows(bob, "&lt;script&gt;alert(1)", "?maker=sweep/rank&namespace=team-b").text
        for text in (listed, page.get(bob).text, page.get(bob, "job/team-b/attack/").text):
            assert "<script>alert" not in text and "<img" not in text
            assert "script-src 'sha256-" in text or "<script" not in text
            assert unclosed(text) == []
    finally:
        for name in ("attack", "attack-2"):
            site.api.delete("LoRARLJob", name, "team-b")


def test_the_commands_of_the_docs_let_a_reader_in(site: Cluster, page: Page) -> None:
    text = (CHART.parents[1] / "docs/dashboard.md").read_text()
    account, binding, token = re.findall(
        r"^kubectl (create (?:serviceaccount|rolebinding|token reader) .*)$", text, re.M
    )
    site.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    # No controller runs here that would add the chart's role to the cluster's own.
    (view,) = (one for one in of(rendered(), "ClusterRole") if one["metadata"]["name"].endswith("-view"))
    site.api.patch("ClusterRole", "view", {"rules": view["rules"]})
    job(site, "team", "first")
    for command in (account, binding):
        site.must(*shlex.split(command))
    reader = site.must(*shlex.split(token)).strip()
    until(SECONDS, "the API server allows", lambda: may_list(site, reader, "team"))
    shown = page.shows(reader, "job/team/first/").text
    assert "As system:serviceaccount:team:reader may list them" in shown and "sums" not in shown
