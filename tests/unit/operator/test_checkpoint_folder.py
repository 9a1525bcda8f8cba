"""Checkpoints on volumes: those that would be deleted with the pods are refused before any GPU is taken."""

from __future__ import annotations

import pytest

from lorarl_operator.decide import parse
from lorarl_operator.decide.valid_spec import checked_spec
from lorarl_operator.manifests.cleanup import cleanup_job
from lorarl_operator.manifests.rayjob import ray_job
from unit.operator.decisions import conditions, decided
from unit.operator.observed_world import SETTINGS, START, raw_job

CLAIM = {"persistentVolumeClaim": {"claimName": "lustre"}}


def overrides(volume, *, roles=("head", "worker"), path="/data", **mount):
    def of(role):
        container = {"name": f"ray-{role}", "volumeMounts": [{"name": "data", "mountPath": path, **mount}]}
        return {"spec": {"volumes": [{"name": "data", **volume}], "containers": [container]}}

    return {"podTemplateOverrides": {role: of(role) for role in roles}}


def why(uri, cluster=None, **parts):
    """The message about a job that waits for a correction; None if its RayJob is created."""
    decision = decided(raw_job({"checkpoint": {"uri": uri}, "cluster": cluster or {}, **parts}))
    if decision.status is None:
        return None
    assert decision.status["phase"] == "Pending"
    assert conditions(decision)["Running"]["reason"] == "Invalid"
    return conditions(decision)["Running"]["message"]


@pytest.mark.parametrize("uri", ["file:///data/adapters", "file:/data", "file:///data/x/../adapters/"])
@pytest.mark.parametrize("volume", [CLAIM, {"hostPath": {"path": "/mnt"}}, {"nfs": {"server": "a", "path": "/"}}])
def test_a_folder_on_a_volume_that_stays_is_taken(uri, volume):
    assert why(uri, overrides(volume)) is None


@pytest.mark.parametrize(
    ("uri", "cluster", "said"),
    [
        ("file:///adapters", {}, "is on no volume in the head pod"),
        ("file:///tmp/adapters", {}, "is on a volume of the kind emptyDir in the head pod"),
        ("file:data/adapters", overrides(CLAIM), "is relative to the working directory in the head pod"),
        ("file:///database", overrides(CLAIM), "is on no volume in the head pod"),
        ("file:///data/../adapters", overrides(CLAIM), "is on no volume in the head pod"),
        ("file:///data/a", overrides({"emptyDir": {}}), "is on a volume of the kind emptyDir in the head pod"),
        ("file:///data/a", overrides({"ephemeral": {}}), "is on a volume of the kind ephemeral in the head pod"),
        ("file:///data/a", overrides(CLAIM, readOnly=True), "is on a volume that is mounted read-only in the head pod"),
        ("file:///data/a", overrides(CLAIM, roles=["head"]), "is on no volume in the worker pod"),
        ("file:///data/a", overrides(CLAIM, roles=["worker"]), "is on no volume in the head pod"),
    ],
)
def test_a_folder_that_goes_with_its_pod_is_refused(uri, cluster, said):
    message = why(uri, cluster)
    assert message.startswith(f'spec.checkpoint.uri: got "{uri}", which {said}, expected file:///FOLDER on a volume')
    assert "Use s3://, gs://, az:// or pvc://CLAIM/FOLDER, or mount such a volume" in message


def test_the_innermost_mount_counts():
    cluster = overrides(CLAIM)
    for role, of in cluster["podTemplateOverrides"].items():
        of["spec"]["volumes"].append({"name": "fast", "emptyDir": {}})
        of["spec"]["containers"][0]["volumeMounts"].append({"name": "fast", "mountPath": "/data/fast"})
        assert of["spec"]["containers"][0]["name"] == f"ray-{role}"
    assert why("file:///data/adapters", cluster) is None
    assert "emptyDir" in why("file:///data/fast/adapters", cluster)


def test_the_cache_on_a_claim_is_a_folder_that_stays():
    """An override may replace one of our own emptyDirs."""
    volume = {"volumes": [{"name": "cache", **CLAIM}]}
    cluster = {"podTemplateOverrides": {role: {"spec": volume} for role in ("head", "worker")}}
    assert why("file:///var/cache/lorarl/adapters", cluster) is None


ON_CLAIM = {"checkpoint": {"uri": "pvc://lustre/adapters", "deletionPolicy": "Delete"}}


class TestClaim:
    def pods(self, spec):
        job = parse.job(raw_job(spec))
        cluster = ray_job(job, checked_spec(job), 1, SETTINGS)["spec"]["rayClusterSpec"]
        cleanup = cleanup_job(job, checked_spec(job), SETTINGS, START, 60)
        templates = [cluster["headGroupSpec"]["template"], cluster["workerGroupSpecs"][0]["template"]]
        return [each["spec"] for each in (*templates, cleanup["spec"]["template"])]

    def test_pods_and_clean_up_write_to_it(self):
        for pod in self.pods(ON_CLAIM):
            (volume,) = [each for each in pod["volumes"] if "persistentVolumeClaim" in each]
            assert volume["persistentVolumeClaim"] == {"claimName": "lustre"}
            mounts = pod["containers"][0]["volumeMounts"]
            assert {"name": volume["name"], "mountPath": "/mnt/pvc/lustre"} in mounts
            assert pod["securityContext"]["fsGroup"] == 10001, "a new volume belongs to root"
            assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"

    def test_a_claim_that_model_and_checkpoints_share_is_mounted_once(self):
        for pod in self.pods(ON_CLAIM | {"model": {"uri": "pvc://lustre/qwen"}}):
            assert len([each for each in pod["volumes"] if "persistentVolumeClaim" in each]) == 1

    def test_other_claims_stay_read_only(self):
        head, worker, cleanup = self.pods(ON_CLAIM | {"model": {"uri": "pvc://models/qwen"}})
        for pod in (head, worker):
            assert {"claimName": "models", "readOnly": True} in [
                each.get("persistentVolumeClaim") for each in pod["volumes"]
            ]
        assert "models" not in str(cleanup["volumes"])

    def test_without_one_nothing_changes_a_pods_groups(self):
        for pod in self.pods({}):
            assert "fsGroup" not in pod["securityContext"]


def test_adapters_for_servers_are_in_a_folder_that_the_workers_share():
    rollout = {"servers": ["http://vllm:8000"], "serverFolder": "/data/adapters"}
    workers = {"roles": ["worker"]}
    assert why("s3://team/adapters", overrides(CLAIM, **workers), rollout=rollout) is None
    own = why("s3://team/adapters", overrides({"emptyDir": {}}, **workers), rollout=rollout)
    assert own.startswith('spec.rollout.serverFolder: got "/data/adapters", which is on a volume of the kind emptyDir')
    assert "in the worker pod" in own and "Mount such a volume by cluster.podTemplateOverrides.worker." in own
