"""A job with the values of its template: whose value wins, and what a template forbids."""

from __future__ import annotations

from typing import Any

import pytest

from lorarl_api.crdgen import definitions, template_crd
from lorarl_api.faults import ManifestError
from lorarl_api.load import faults
from lorarl_api.templates import Template, merged_keys, merged_spec, reference, require_unlocked, template_of
from lorarl_api.v1alpha1 import CLUSTER_TEMPLATE_KIND, LOCKABLE, TEMPLATE_KIND
from unit.contract.manifests import manifest


def template(**spec: Any) -> Template:
    return Template(CLUSTER_TEMPLATE_KIND, "gpu-pool", spec)


def cluster(own: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """`spec.cluster` of a job with a template, which must be valid."""
    job = manifest({"spec.cluster": own})
    merged = merged_spec(job["spec"], template(cluster=given))
    assert faults({**job, "spec": merged}) == []
    return dict(merged["cluster"])


def test_the_jobs_value_wins_and_a_default_is_no_value() -> None:
    given = {"image": "platform/trainer:1", "priorityClassName": "low", "allowConsolidation": True}
    own = {"image": "mine/trainer:2", "nodes": 2, "allowConsolidation": False, "submissionMode": "SidecarMode"}
    assert cluster(own, given) == {
        "image": "mine/trainer:2",
        "nodes": 2,
        "priorityClassName": "low",
        "allowConsolidation": True,
    }


def test_mappings_are_merged_and_lists_are_joined() -> None:
    taint = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    given = {
        "env": {"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": ".svc"},
        "tolerations": [taint],
        "imagePullSecrets": ["registry"],
        "head": {"nodeSelector": {"pool": "cpu"}},
    }
    own = {
        "env": {"NO_PROXY": ".svc,.mine", "NCCL_DEBUG": "INFO"},
        # As the API server returns it, with defaults.
        "tolerations": [taint, {"key": "spot", "operator": "Equal", "value": "yes"}],
        "imagePullSecrets": ["mine"],
        "head": {"cpus": 2},
    }
    merged = cluster(own, given)
    assert merged["env"] == {"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": ".svc,.mine", "NCCL_DEBUG": "INFO"}
    assert merged["tolerations"] == [taint, {"key": "spot", "value": "yes"}]
    assert merged["imagePullSecrets"] == ["registry", "mine"]
    assert merged["head"] == {"cpus": 2, "nodeSelector": {"pool": "cpu"}}


def test_overrides_of_pods_are_merged_as_into_a_pod_and_nulls_stay() -> None:
    def worker(container: dict[str, Any], **spec: Any) -> dict[str, Any]:
        return {
            "podTemplateOverrides": {"worker": {"spec": {"containers": [{"name": "ray-worker", **container}], **spec}}}
        }

    given = worker({"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}]}, hostNetwork=True)
    own = worker({"env": [{"name": "B", "value": "2"}], "resources": {"limits": {"nvidia.com/gpu": None}}})
    [container] = cluster(own, given)["podTemplateOverrides"]["worker"]["spec"]["containers"]
    assert container["env"] == [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": None}}
    assert cluster(own, given)["podTemplateOverrides"]["worker"]["spec"]["hostNetwork"] is True


def test_tracking_labels_and_annotations_come_from_the_template_too() -> None:
    given = template(tracking={"wandb": {"project": "team", "entity": "lab"}})
    spec = manifest({"spec.tracking": {"wandb": {"project": "mine"}}})["spec"]
    assert merged_spec(spec, given)["tracking"]["wandb"] == {"project": "mine", "entity": "lab"}
    assert merged_keys({"queue": "mine"}, {"queue": "theirs", "cost": "7"}) == {"queue": "mine", "cost": "7"}
    assert merged_keys({}, None) == {}


@pytest.mark.parametrize(
    ("own", "locked", "message"),
    [
        ({"image": "mine:1"}, ["cluster.image"], 'spec.cluster.image: got "mine:1", must keep the value of Cluster'),
        ({"image": "mine:1"}, ["cluster"], "spec.cluster: got a mapping with 1 entry"),
        ({"tolerations": [{"operator": "Exists"}]}, ["cluster.tolerations"], "spec.cluster.tolerations: got a list"),
        (
            {"podTemplateOverrides": {"head": {"spec": {}}}},
            ["cluster.podTemplateOverrides"],
            "gpu-pool, which locks it",
        ),
        ({}, ["labels"], 'metadata.labels: got queue: "mine", must keep'),
    ],
)
def test_a_locked_field_is_refused_with_the_fix(own: dict[str, Any], locked: list[str], message: str) -> None:
    given = template(cluster={"image": "theirs:1"}, labels={"queue": "theirs"}, locked=locked)
    with pytest.raises(ManifestError) as refused:
        require_unlocked(manifest({"spec.cluster": own})["spec"], {"queue": "mine"}, {}, given)
    assert message in str(refused.value)
    assert str(refused.value).endswith("Remove it, or ask who maintains the template.")


@pytest.mark.parametrize(
    ("own", "locked"),
    [
        ({"image": "theirs:1"}, ["cluster.image"]),
        ({"nodes": 1, "gpusPerNode": 0, "allowConsolidation": False}, ["cluster.allowConsolidation", "tracking"]),
        ({"image": "mine:1"}, ["cluster.schedulerName", "labels", "annotations"]),
    ],
)
def test_the_templates_own_value_and_defaults_are_not_refused(own: dict[str, Any], locked: list[str]) -> None:
    given = template(cluster={"image": "theirs:1"}, labels={"queue": "a"}, locked=locked)
    require_unlocked(manifest({"spec.cluster": own})["spec"], {"queue": "a", "team": "b"}, {}, given)


def test_a_template_that_is_not_valid_names_its_fields() -> None:
    bad = {"cluster": {"nodes": 2}, "locked": ["cluster.imge"], "rollout": {}}
    with pytest.raises(ManifestError) as refused:
        template_of({"kind": TEMPLATE_KIND, "metadata": {"name": "a"}, "spec": bad})
    for path in ("spec.cluster:", "spec.locked:", "spec.rollout:"):
        assert path in str(refused.value)


def test_only_a_name_is_a_reference() -> None:
    assert str(reference({"templateRef": {"name": "a"}})) == "kind='LoRARLJobTemplate' name='a'"
    assert [reference({"templateRef": bad}) for bad in ("a", {}, {"name": "a", "kind": "Pod"})] == [None] * 3


def test_a_template_has_a_jobs_fields_without_defaults() -> None:
    """Else the API server would fill them in, and each template would seem to set everything."""
    (version,) = template_crd(TEMPLATE_KIND)["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    cluster_fields = spec["cluster"]["properties"]
    assert {"nodes", "gpusPerNode"} & set(cluster_fields) == set()
    assert cluster_fields["podTemplateOverrides"]["properties"]["head"]["properties"]["spec"]
    for field in (*cluster_fields.values(), *spec["tracking"]["properties"].values()):
        assert not {"default", "required", "x-kubernetes-validations"} & set(field)
    assert spec["locked"]["items"]["enum"] == list(LOCKABLE)
    assert [name for name in definitions() if "templates" in name] == [
        "lorarl.io_lorarljobtemplates.yaml",
        "lorarl.io_clusterlorarljobtemplates.yaml",
    ]
