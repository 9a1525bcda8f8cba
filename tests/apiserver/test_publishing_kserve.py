"""Adapters reach KServe's services behind a gate: its own kind, a real API server, and the operator with its rights.

Neither KubeRay nor KServe's controller runs: tests report what a training would, and make the pods that KServe would.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import yaml

from support.cluster import aibrix, kserve
from support.cluster.audit import granted, refused, used, writes
from support.cluster.client import Api, ApiError, Object
from support.cluster.control_plane import Cluster, control_plane
from support.cluster.crds import install_crds
from support.cluster.kserve import KIND, adapters, crashes, names, rolls
from support.cluster.kserve_jobs import ENTRY, MANIFEST, THEIRS, job, namespace, service, wait_names
from support.cluster.lorarljobs import events, wait_event
from support.cluster.operator import RIGHTS, grant_target, prepare
from support.cluster.processes import find_share, until
from support.cluster.publishing import (
    ACCOUNT,
    OPERATOR,
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
        api.wait("LoRARLJob", "sums", where, lambda one: entry(one)["targets"] == ["aibrix"], seconds=240)


def test_the_operator_uses_all_its_rights_on_services_and_no_others(served: Cluster) -> None:
    """This must run after the others of this file."""
    rules: list[Object] = yaml.safe_load(RIGHTS.read_text())["kserve"]
    needed = {one for one in used(served.audit_log, OPERATOR) if one.group == "serving.kserve.io"}
    assert granted(rules) == needed
    early = [one for one in refused(served.audit_log, OPERATOR) if "/missing/" not in one]
    known = ("may write only objects that a LoRARLJob owns", "may change only its own entries", "no more adapters")
    assert [one for one in early if not any(words in one for words in known)] == []
