"""Adapters reach KServe's services behind a gate: its own kind, a real API server, and the operator with its rights.

Neither KubeRay nor KServe's controller runs: tests report what a training would, and make the pods that KServe would.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from aiohttp import web

from support.cluster import aibrix, kserve
from support.cluster.api_proxy import Call, api_proxy
from support.cluster.audit import granted, refused, used, writes
from support.cluster.client import Api, ApiError, Object
from support.cluster.control_plane import Cluster, control_plane
from support.cluster.crds import install_crds
from support.cluster.kserve import KIND, adapters, crashes, names, rolls
from support.cluster.lorarljobs import events, wait_event
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
from unit.operator.publishing_world import best, model

MANIFEST, FRAGMENT, SERVICE = (yaml.safe_load(one.partition("```")[0]) for one in PAGE.split("```yaml\n")[1:])
ENTRY: Object = FRAGMENT["publish"][0] | {"minimum": 0.5}
THEIRS: Object = {"name": "theirs", "uri": "hf://others/theirs", "framework": "lora"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """An API server with our kinds and KubeRay's. KServe is not installed at first."""
    with tools_or_skip():
        find_share("ray-operator")
        with control_plane(tmp_path_factory.mktemp("publishing-kserve"), audit=True) as running:
            install(running)
            yield running


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Cluster:
    """The same with KServe's kind, and with the operator's rights on it."""
    if not any(group["name"] == "serving.kserve.io" for group in cluster.api.request("GET", "/apis")["groups"]):
        install_crds(cluster, kserve.CRD)
    prepare(cluster, account=ACCOUNT)
    grant_target(cluster, "kserve", ACCOUNT)
    return cluster


def namespace(cluster: Cluster, name: str) -> str:
    create(cluster, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}}
    create(cluster, account)
    return name


def job(where: str, *entries: Object) -> Object:
    """The page's job with these entries; it is suspended."""
    about = {"name": "sums", "namespace": where}
    spec = MANIFEST["spec"] | {"suspend": True, "publish": list(entries or [ENTRY])}
    return MANIFEST | {"metadata": about, "spec": spec}


def service(api: Api, where: str, *listed: Object, labels: bool = True) -> Object:
    """The page's service with adapters of others, and its pods."""
    about = SERVICE["metadata"] | {"namespace": where} | ({} if labels else {"labels": {}})
    model_spec = SERVICE["spec"]["model"]
    lora = model_spec["lora"] | ({"adapters": list(listed)} if listed else {})
    made = api.create(SERVICE | {"metadata": about, "spec": SERVICE["spec"] | {"model": model_spec | {"lora": lora}}})
    rolls(api, where)
    return made


def wait_names(cluster: Cluster, where: str, wanted: set[str]) -> None:
    until(SECONDS, f"the list has {sorted(wanted)}", lambda: names(cluster.api, where) == wanted)


@pytest.mark.long
def test_a_cluster_without_kserve_or_without_the_right_to_it_says_so(cluster: Cluster) -> None:
    """This must be the first test of this file: the fixture `served` installs what is missing here."""
    where = namespace(cluster, "missing")
    with leading(cluster, "missing"):
        cluster.api.create(job(where))
        said = wait_state(cluster, where, "Failed", "NotInstalled")
        assert "Install KServe" in said["message"] and "serving.kserve.io/v1alpha2" in said["message"]
        install_crds(cluster, kserve.CRD)
        said = wait_state(cluster, where, "Failed", "Forbidden")
        assert "publish.kserve.enabled=true" in said["message"]
        service(cluster.api, where)
        reports(cluster, where, 10, 0.6)
        grant_target(cluster, "kserve", ACCOUNT)
        wait_names(cluster, where, {model(10)})
        cluster.api.delete("LoRARLJob", "sums", where)


def test_the_list_is_one_value_for_server_side_apply(served: Cluster) -> None:
    """Why the operator does not apply its entries: each that does removes those of the others."""
    where = namespace(served, "atomic")
    service(served.api, where)
    about = {"apiVersion": SERVICE["apiVersion"], "kind": KIND, "metadata": {"name": "qwen", "namespace": where}}

    def mine(name: str) -> Object:
        return about | {"spec": {"model": {"lora": {"adapters": [THEIRS | {"name": name}]}}}}

    served.api.apply(mine("one"), manager="one")
    served.api.apply(mine("two"), manager="two")
    assert names(served.api, where) == {"two"}


def test_a_version_is_added_replaced_and_withdrawn(served: Cluster) -> None:
    where, api = namespace(served, "brief"), served.api
    before = service(api, where, THEIRS)
    with leading(served, "brief"):
        api.create(job(where))
        for step, value in ((10, 0.6), (20, 0.8)):
            reports(served, where, step, value)
            until(SECONDS, "it is in the list", lambda step=step: model(step) in names(api, where))  # type: ignore[misc]
            rolls(api, where)
            wait_state(served, where, "Serving", "Serving", serves=model(step))
        wait_names(served, where, {"theirs", model(20)})
        from_page(served, where, "patch lrj sums", '"remove", "path": "/spec/publish"')
        wait_names(served, where, {"theirs"})
        rolls(api, where)
        wait_event(api, where, "sums", "Withdrawn")
    after = api.wait(KIND, "qwen", where, bool)
    assert after["spec"] == before["spec"], "nothing else was changed"


@pytest.mark.long
def test_the_best_is_published_replaced_and_rolled_back(served: Cluster) -> None:
    where, api = namespace(served, "whole"), served.api
    before = service(api, where, THEIRS)
    with leading(served, "whole"):
        api.create(job(where))
        wait_state(served, where, "Waiting", "NoResult")
        reports(served, where, 5, 0.4)
        wait_state(served, where, "HeldBack", "BelowGate")
        reports(served, where, 10, 0.6)
        wait_state(served, where, "Waiting", "Loading")
        wait_names(served, where, {"theirs", model(10)})
        assert adapters(api, where) == [THEIRS, {"name": model(10), "uri": best(10, 0.6)["uri"] + "/"}]
        rolls(api, where)
        wait_state(served, where, "Serving", "Serving", serves=model(10))
        assert from_page(served, where, "get lrj -o wide", "").split()[-1] == model(10)
        reports(served, where, 20, 0.8)
        wait_names(served, where, {"theirs", model(10), model(20)})
        crashes(api, where, "ValueError: LoRA rank 32 is greater than max_lora_rank 16")
        said = wait_state(served, where, "Failed", "LoadFailed", serves=model(10))
        assert "max_lora_rank 16" in said["message"] and names(api, where) == {"theirs", model(10), model(20)}
        rolls(api, where)
        wait_state(served, where, "Serving", "Serving", serves=model(20))
        wait_names(served, where, {"theirs", model(20)})
        rolls(api, where)
        from_page(served, where, "patch lrj sums", '"value": 10')
        wait_names(served, where, {"theirs", model(10), model(20)})
        rolls(api, where)
        wait_state(served, where, "Serving", "Pinned", serves=model(10))
        wait_names(served, where, {"theirs", model(10)})
        from_page(served, where, "patch lrj sums", '"remove", "path": "/spec/publish"')
        wait_names(served, where, {"theirs"})
        rolls(api, where)
        wait_event(api, where, "sums", "Withdrawn")
    after = api.wait(KIND, "qwen", where, bool)
    assert after["spec"] == before["spec"], "nothing else was changed"
    assert "annotations" not in after["metadata"]
    told = {one["reason"] for one in events(api, where, "sums")}
    assert told >= {"BelowGate", "Loading", "Serving", "LoadFailed", "Pinned", "Withdrawn"}
    made = [one for one in writes(served.audit_log, OPERATOR, where) if "llminferenceservices" in one]
    assert len(made) == 7 and set(made) == {"patch llminferenceservices qwen"}, "and a record that ends"


@pytest.mark.long
def test_a_service_may_be_missing_closed_deleted_and_created_again(served: Cluster) -> None:
    where, api = namespace(served, "comes"), served.api
    with leading(served, "comes"):
        api.create(job(where))
        reports(served, where, 10, 0.6)
        said = wait_state(served, where, "Failed", "NoService")
        assert f"Namespace {where} has no LLMInferenceService qwen" in said["message"]
        service(api, where, labels=False)
        rolls(api, where)
        assert names(api, where) == set()
        from_page(served, where, "label llminferenceservices", "")
        wait_names(served, where, {model(10)})
        rolls(api, where)
        wait_state(served, where, "Serving", "Serving", serves=model(10))
        reports(served, where, 20, 0.8)
        wait_names(served, where, {model(10), model(20)})
        api.delete(KIND, "qwen", where)
        wait_state(served, where, "Failed", "NoService", serves="")
        service(api, where, THEIRS)
        wait_names(served, where, {"theirs", model(20)})
        rolls(api, where)
        wait_state(served, where, "Serving", "Serving", serves=model(20))


@pytest.mark.long
def test_what_does_not_fit_or_is_refused_changes_nothing(served: Cluster) -> None:
    where, api = namespace(served, "refuses"), served.api
    service(api, where)
    api.patch(KIND, "qwen", {"spec": {"model": {"lora": {"maxRank": 8}}}}, where)
    refuses = json.dumps({"apiVersion": "v1", "kind": "List", "items": policy(where)})
    served.must("apply", "-f", "-", stdin=refuses)
    with leading(served, "refuses"):
        api.create(job(where))
        reports(served, where, 10, 0.6)
        said = wait_state(served, where, "Failed", "DoesNotFit")
        assert "spec.model.lora.maxRank is 8" in said["message"] and names(api, where) == set()
        wait_refused(api, where)
        api.patch(KIND, "qwen", {"spec": {"model": {"lora": {"maxRank": 64}}}}, where)
        said = wait_state(served, where, "Failed", "Refused")
        assert "no more adapters here" in said["message"] and names(api, where) == set()
        served.must("delete", "-f", "-", stdin=refuses)
        wait_names(served, where, {model(10)})


def policy(where: str) -> list[Object]:
    """What refuses adapters in a namespace, as KServe's webhook may."""
    about = {"name": f"no-adapters-{where}"}
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": about}
    rules = {"apiGroups": ["serving.kserve.io"], "apiVersions": ["*"], "resources": ["*"], "operations": ["UPDATE"]}
    refuses = {
        "expression": "size(object.spec.model.?lora.?adapters.orValue([])) == 0",
        "message": "no more adapters here",
    }
    selector = {"matchLabels": {"kubernetes.io/metadata.name": where}}
    spec: Object = {"matchConstraints": {"resourceRules": [rules]}, "validations": [refuses]}
    binding = {
        "policyName": about["name"],
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": selector},
    }
    return [
        kind | {"kind": "ValidatingAdmissionPolicy", "spec": spec},
        kind | {"kind": "ValidatingAdmissionPolicyBinding", "spec": binding},
    ]


def wait_refused(api: Api, where: str) -> None:
    """Return when the policy is in force, which takes the API server a moment."""

    def is_refused() -> bool:
        path = f"/apis/serving.kserve.io/v1alpha2/namespaces/{where}/llminferenceservices/qwen?dryRun=All"
        patch = {"spec": {"model": {"lora": {"adapters": [THEIRS]}}}}
        try:
            api.request("PATCH", path, patch, "application/merge-patch+json")
        except ApiError:
            return True
        return False

    until(SECONDS, "the policy refuses adapters", is_refused)


def test_what_others_write_at_the_same_moment_is_kept(served: Cluster) -> None:
    where, api, met = namespace(served, "busy"), served.api, []
    service(api, where)

    async def between(call: Call) -> web.StreamResponse:
        if call.writes and "llminferenceservices" in call.path and len(met) < 3:
            met.append(THEIRS | {"name": f"theirs-{len(met)}"})
            api.patch(KIND, "qwen", {"spec": {"model": {"lora": {"adapters": list(met)}}}}, where)
        return await call.forward()

    with api_proxy(served) as proxy:
        proxy.intercept = between
        prepare(served, account=ACCOUNT)
        kubeconfig = proxy.kubeconfig(served, "busy", served.service_account_token(SYSTEM, ACCOUNT))
        with operator(served, kubeconfig, "busy") as one:
            wait_leader(one)
            api.create(job(where))
            reports(served, where, 10, 0.6)
            wait_names(served, where, {"theirs-0", "theirs-1", "theirs-2", model(10)})
            assert adapters(api, where)[:3] == met


@pytest.mark.long
def test_two_targets_of_one_job_are_served_side_by_side(served: Cluster) -> None:
    where, api = namespace(served, "both"), served.api
    if not any(group["name"] == "model.aibrix.ai" for group in api.request("GET", "/apis")["groups"]):
        install_crds(served, aibrix.CRD)
    grant_target(served, "aibrix", ACCOUNT)
    service(api, where)
    to_aibrix = MANIFEST["spec"]["publish"][0] | {"name": "also", "minimum": 0.5}
    with leading(served, "both"):
        api.create(job(where, ENTRY, to_aibrix))
        reports(served, where, 10, 0.6)
        wait_names(served, where, {model(10)})
        api.wait(aibrix.KIND, model(10, "also"), where, bool, seconds=SECONDS)
        aibrix.loads(api, where, model(10, "also"))
        api.wait("LoRARLJob", "sums", where, lambda one: entry(one, 1).get("state") == "Serving", seconds=SECONDS)
        rolls(api, where)
        wait_state(served, where, "Serving", "Serving", serves=model(10))
        moved = [to_aibrix | {"name": "sums"}, to_aibrix]
        api.patch("LoRARLJob", "sums", {"spec": {"publish": moved}}, where)
        api.wait(aibrix.KIND, model(10), where, bool, seconds=SECONDS)
        assert names(api, where) == {model(10)}, "it answers there until the other one does"
        aibrix.loads(api, where, model(10))
        wait_names(served, where, set())
        rolls(api, where)
        api.wait("LoRARLJob", "sums", where, lambda one: entry(one)["targets"] == ["aibrix"], seconds=120)


class Others:
    """People who change a service's list beside the operator, delete it and create it again."""

    def __init__(self, api: Api, where: str, seed: int) -> None:
        self.api, self.where, self._random = api, where, random.Random(seed)
        self.theirs: list[Object] = []

    def move(self) -> None:
        move = self._random.choice([self.add, self.remove, self.roll, self.crash, self.recreate])
        move()

    def add(self) -> None:
        self.theirs.insert(0, THEIRS | {"name": f"theirs-{self._random.randrange(10**9)}"})
        self._edit(lambda before: [self.theirs[0], *before])

    def remove(self) -> None:
        if self.theirs:
            gone = self.theirs.pop()
            self._edit(lambda before: [one for one in before if one != gone])

    def roll(self) -> None:
        rolls(self.api, self.where)

    def crash(self) -> None:
        crashes(self.api, self.where, "it does not fit")

    def recreate(self) -> None:
        self.api.delete(KIND, "qwen", self.where)
        self.theirs.clear()
        service(self.api, self.where)

    def _edit(self, change: Callable[[list[Object]], list[Object]]) -> None:
        done = False
        while not done:
            found = self.api.get(KIND, "qwen", self.where)
            assert found is not None
            after = change(list(found["spec"]["model"].get("lora", {}).get("adapters") or []))
            about = {"resourceVersion": found["metadata"]["resourceVersion"]}
            patch = {"metadata": about, "spec": {"model": {"lora": {"adapters": after}}}}
            try:
                self.api.patch(KIND, "qwen", patch, self.where)
                done = True
            except ApiError as error:
                assert error.status == 409, error


@pytest.mark.parametrize("moves", [6, pytest.param(80, marks=pytest.mark.long)])
def test_no_history_of_a_shared_list_loses_what_others_wrote(served: Cluster, moves: int) -> None:
    """Better versions are reported meanwhile, and what others write comes at any moment."""
    where, api = namespace(served, f"history-{moves}"), served.api
    service(api, where, {"name": "first", "uri": "hf://others/first"})
    others = Others(api, where, seed=moves)
    others.recreate()
    with leading(served, f"history-{moves}"):
        api.create(job(where))
        for step in range(1, moves + 1):
            if step % 2:
                reports(served, where, step, 0.5 + step / 1000)
            others.move()
            listed = [one for one in adapters(api, where) if one["name"].startswith("theirs")]
            assert listed == others.theirs
        reports(served, where, 999, 0.99)

        def settled() -> bool:
            others.roll()
            return names(api, where) == {*(one["name"] for one in others.theirs), model(999)}

        until(120, "the last version alone is left of ours", settled)
        wait_state(served, where, "Serving", "Serving", serves=model(999))


def test_the_charts_policy_keeps_the_operator_from_all_but_its_own_entries(served: Cluster) -> None:
    where, api = namespace(served, "policy"), served.api
    service(api, where, THEIRS)
    closed = SERVICE | {"metadata": {"name": "closed", "namespace": where}}
    api.create(closed)
    stolen = served.api_as(served.service_account_token(SYSTEM, ACCOUNT))
    ours = {"name": "ours", "uri": "s3://team/a"}
    record = {"lorarl.io/adapters": '{"ours": {"entry": "sums"}}'}

    def patch(listed: list[Any] | None = None, name: str = "qwen", **others: Any) -> Object:
        lora: Object = {"model": {"lora": {"adapters": listed}}} if listed is not None else {}
        about = {"annotations": record, **others.pop("metadata", {})}
        return stolen.patch(KIND, name, {"metadata": about, "spec": {**lora, **others}}, where)

    asked: list[tuple[Callable[[], object], str]] = [
        (lambda: patch([ours], "closed"), "may write only objects that a LoRARLJob owns"),
        (lambda: patch([ours], "closed", metadata={"labels": SERVICE["metadata"]["labels"]}), "may write only objects"),
        (lambda: patch([ours]), "may change only its own entries"),
        (lambda: patch([THEIRS | {"uri": "s3://team/a"}]), "may change only its own entries"),
        (lambda: patch([THEIRS, {"name": "more", "uri": "s3://team/a"}]), "may change only its own entries"),
        (lambda: patch([THEIRS, ours], replicas=5), "may change only its own entries"),
        (lambda: patch([THEIRS, ours], template={"containers": []}), "may change only its own entries"),
        (lambda: patch(model={"uri": "s3://team/base"}), "may change only its own entries"),
        (lambda: patch(model={"lora": {"maxRank": 1}}), "may change only its own entries"),
        (lambda: patch(metadata={"labels": {"more": "yes"}}), "may change only its own entries"),
        (lambda: patch(metadata={"annotations": {"more": "yes"}}), "may change only its own entries"),
        (lambda: patch(metadata={"finalizers": ["example.com/mine"]}), "may change only its own entries"),
    ]
    for one, words in asked:
        with pytest.raises(ApiError, match=words):
            one()
    patch([THEIRS, ours])
    patch([THEIRS, ours | {"uri": "s3://team/b"}])
    assert patch([THEIRS])["spec"]["model"]["lora"]["adapters"] == [THEIRS]
    stolen.patch(KIND, "qwen", {"metadata": {"annotations": None}}, where)


def test_the_operator_uses_all_its_rights_on_services_and_no_others(served: Cluster) -> None:
    """This must run after the others of this file."""
    rules: list[Object] = yaml.safe_load(RIGHTS.read_text())["kserve"]
    needed = {one for one in used(served.audit_log, OPERATOR) if one.group == "serving.kserve.io"}
    assert granted(rules) == needed
    early = [one for one in refused(served.audit_log, OPERATOR) if "/missing/" not in one]
    known = ("may write only objects that a LoRARLJob owns", "may change only its own entries", "no more adapters")
    assert [one for one in early if not any(words in one for words in known)] == []
