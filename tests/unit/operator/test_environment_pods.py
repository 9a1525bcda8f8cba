"""Pods in which a job's environment plays: how they are rendered, and that their loss is none of the training's."""

from __future__ import annotations

import json

import pytest

from lorarl_api.faults import ManifestError
from lorarl_api.load import job_of
from lorarl_api.pod_overrides import override_faults
from lorarl_operator.decide import parse
from lorarl_operator.decide.decide import decide
from lorarl_operator.decide.decision import DeletePod
from lorarl_operator.decide.kept_image import with_kept_image
from lorarl_operator.decide.models import Evidence
from lorarl_operator.decide.settings import NetworkAccess
from lorarl_operator.decide.valid_spec import checked_spec
from lorarl_operator.manifests.network import network_policy
from unit.contract.manifests import manifest
from unit.operator.built import built, head, workers
from unit.operator.decisions import RUNNING, conditions, decided, running_status, status_of
from unit.operator.observed_world import SETTINGS, START, ago, condition, ended, observed, raw_job, raw_pod, raw_ray_job

PLAYED = {"reward": None, "environment": {"function": "game:Dice"}}
PODS = {"replicas": 3, "image": "registry.example.com/games:1", "cpus": "8", "memory": "16Gi"}
TRAINER = "registry.example.com/lorarl/trainer:0.1.0"
GPUS = PLAYED | {"cluster": {"gpusPerNode": 2, "environments": PODS}}
TRAINS = {"workers": {"attempt": 1, "pods": ["demo-1-worker"]}, "step": 7}
READY = [condition("Ready", True)]
OTHERS = (raw_pod("head", conditions=READY), raw_pod("worker", conditions=READY))


def group_of(rayjob):
    [group] = rayjob["spec"]["rayClusterSpec"]["workerGroupSpecs"][1:]
    return group


def pod_of(rayjob):
    return group_of(rayjob)["template"]["spec"]


def container(rayjob):
    return pod_of(rayjob)["containers"][0]


class TestRendering:
    def test_a_job_without_them_has_one_group(self):
        groups = built(PLAYED)["spec"]["rayClusterSpec"]["workerGroupSpecs"]
        assert [group["groupName"] for group in groups] == ["workers"]

    def test_they_have_no_gpu_and_take_no_worker(self):
        rayjob = built(GPUS)
        group, own = group_of(rayjob), container(rayjob)
        assert (group["groupName"], group["replicas"], group["minReplicas"], group["maxReplicas"]) == (
            "environments",
            3,
            3,
            3,
        )
        params = group["rayStartParams"]
        assert (params["num-cpus"], params["num-gpus"]) == ("0", "0")
        assert json.loads(params["resources"].strip("'")) == {"lorarl_environment": 1}
        assert (own["name"], own["image"]) == ("ray-environment", "registry.example.com/games:1")
        assert own["resources"] == {"requests": {"cpu": "8", "memory": "16Gi"}, "limits": {"memory": "16Gi"}}
        assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in own["env"]
        assert "LORARL_PRELOAD" not in {each["name"] for each in own["env"]}
        assert group["template"]["metadata"]["labels"]["lorarl.io/role"] == "environment"
        assert pod_of(rayjob)["affinity"] == head(rayjob)["spec"]["affinity"], "both prefer nodes without GPUs"

    def test_they_get_nothing_that_gives_access(self):
        spec = GPUS | {
            "model": {"uri": "pvc://models/base", "credentialsSecret": "hub"},
            "checkpoint": {"uri": "pvc://adapters/all", "credentialsSecret": "store"},
            "data": {"train": {"uri": "s3://data/train.jsonl"}, "credentialsSecret": "data"},
            "environment": {"function": "game:Dice", "source": {"uri": "s3://code", "credentialsSecret": "code"}},
        }
        rayjob = built(spec)
        pod = pod_of(rayjob)
        assert [each for each in pod["volumes"] if {"secret", "persistentVolumeClaim"} & each.keys()] == []
        assert pod["automountServiceAccountToken"] is False and "serviceAccountName" not in pod
        assert "serviceAccountName" in head(rayjob)["spec"], "of the pods, this one has the job's identity"
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert container(rayjob)["securityContext"]["capabilities"] == {"drop": ["ALL"]}

    def test_the_jobs_network_policy_is_theirs_too(self):
        job = parse.job(raw_job(GPUS))
        selected = network_policy(job, NetworkAccess())["spec"]["podSelector"]["matchLabels"]
        assert selected.items() <= group_of(built(GPUS))["template"]["metadata"]["labels"].items()

    def test_beside_engines_both_have_a_group(self):
        spec = GPUS | {"rollout": {"separateEngines": {}}}
        groups = built(spec)["spec"]["rayClusterSpec"]["workerGroupSpecs"]
        assert [group["groupName"] for group in groups] == ["workers", "engines", "environments"]

    @pytest.mark.parametrize(
        ("own", "expected"),
        [({}, {"pool": "cpu"}), ({"nodeSelector": {"pool": "games"}}, {"pool": "games"})],
    )
    def test_they_use_the_heads_nodes_unless_they_name_others(self, own, expected):
        tolerated = [{"key": "team", "operator": "Exists"}]
        of_head = {"nodeSelector": {"pool": "cpu"}, "tolerations": tolerated}
        cluster = {"gpusPerNode": 1, "head": of_head, "environments": own, "nodeSelector": {"gpu": "h200"}}
        rayjob = built(PLAYED | {"cluster": cluster})
        assert pod_of(rayjob)["nodeSelector"] == expected
        assert pod_of(rayjob)["tolerations"] == head(rayjob)["spec"]["tolerations"]
        none = built(PLAYED | {"cluster": cluster | {"environments": own | {"tolerations": []}}})
        assert [each["key"] for each in pod_of(none)["tolerations"]] == ["node.kubernetes.io/unreachable"]

    def test_they_have_the_jobs_image_and_keep_it_unless_they_name_one(self):
        spec = PLAYED | {"cluster": {"image": "lorarl/trainer:1", "environments": {"disk": "20Gi"}}}
        rayjob = built(spec)
        assert container(rayjob)["image"] == "lorarl/trainer:1"
        assert container(rayjob)["resources"]["requests"]["ephemeral-storage"] == "20Gi"
        kept = with_kept_image(checked_spec(parse.job(raw_job(spec))), "lorarl/trainer:1@sha256:" + 64 * "0")
        assert kept.cluster.environments is not None and kept.cluster.environments.image is None

    def test_an_override_changes_them_alone(self):
        own = {"spec": {"runtimeClassName": "gvisor"}, "metadata": {"labels": {"lorarl.io/role": "worker"}}}
        cluster = {"environments": {}, "podTemplateOverrides": {"environment": own}}
        rayjob = built(PLAYED | {"cluster": cluster})
        assert pod_of(rayjob)["runtimeClassName"] == "gvisor"
        assert group_of(rayjob)["template"]["metadata"]["labels"]["lorarl.io/role"] == "environment"
        assert "runtimeClassName" not in workers(rayjob)["template"]["spec"]

    def test_an_override_that_cannot_be_merged_is_named(self):
        wrong = {"podTemplateOverrides": {"environment": {"spec": {"containers": [{"image": "x"}]}}}}
        with pytest.raises(ManifestError, match=r"podTemplateOverrides.environment"):
            built(PLAYED | {"cluster": {"environments": {}} | wrong})

    def test_a_limit_below_the_request_is_found_before_it_is_applied(self):
        limits = {"limits": {"memory": "1Gi"}}
        own = {"spec": {"containers": [{"name": "ray-environment", "resources": limits}]}}
        changes = {
            "spec.reward": None,
            "spec.environment": {"function": "game:Dice"},
            "spec.cluster": {"environments": {"memory": "2Gi"}, "podTemplateOverrides": {"environment": own}},
        }
        [fault] = override_faults(job_of(manifest(changes)))
        assert "ray-environment, resources.limits.memory" in fault.path


def seen(*pods, departed=(), status=None, spec=GPUS, evidence=None, **ray_job):
    gone = tuple(parse.pod(pod) for pod in departed)
    job = raw_job(spec, running_status(**TRAINS) if status is None else status)
    ours = raw_ray_job(**RUNNING | ray_job)
    return decide(observed(job, ours, pods=[*OTHERS, *pods], departed=gone, evidence=evidence), START, SETTINGS)


def environment(name="e", **parts):
    return raw_pod("environment", name=name, **parts)


TAINTED = condition("DisruptionTarget", True, "DeletionByTaintManager", "x")
LOSSES = {
    "deleted": environment(deletionTimestamp=ago(1), deletionGracePeriodSeconds=60),
    "out of memory": environment(phase="Failed", containerStatuses=ended("environment", 137, "OOMKilled")),
    "lost with its node": environment(conditions=[TAINTED]),
}


class TestLoss:
    @pytest.mark.parametrize("how", LOSSES)
    @pytest.mark.parametrize("gone", [False, True])
    def test_the_attempt_goes_on_and_nothing_is_counted(self, how, gone):
        pods, departed = ([], [LOSSES[how]]) if gone else ([LOSSES[how]], [])
        decision = seen(*pods, departed=departed)
        written = decision.status or running_status(**TRAINS)
        assert "recoveringSince" not in written
        assert (written["phase"], written["preemptions"], written["attempts"]) == ("Running", 0, 0)
        assert decision.actions == ()

    def test_a_pod_on_a_lost_node_goes_without_that_nodes_word(self):
        overdue = environment(conditions=[TAINTED], deletionTimestamp=ago(40), deletionGracePeriodSeconds=10)
        assert seen(overdue).actions == (DeletePod("e", "pod-environment-1", at_once=True),)

    def test_a_drain_of_its_node_asks_for_no_checkpoint(self):
        spec = GPUS | {"cluster": GPUS["cluster"] | {"disruption": "AfterCheckpoint"}}
        cordoned = Evidence(cordoned=frozenset(["node-9"]))
        decision = seen(environment(nodeName="node-9"), spec=spec, evidence=cordoned)
        assert decision.status is None or "Disrupted" not in conditions(decision)

    def test_one_that_ran_out_of_memory_is_named_with_its_limit(self):
        decision = seen(environment("e2"), departed=[LOSSES["out of memory"]])
        told = conditions(decision)["Running"]["message"]
        assert "environment pod e on node node-1 used more memory than its limit" in told
        assert "Raise cluster.environments.memory, or lower environment.concurrency" in told
        assert [event.reason for event in decision.events] == ["EnvironmentFailed"]

    def test_one_that_finds_no_node_is_named_with_what_it_asks_for(self):
        no_node = condition("PodScheduled", False, "Unschedulable", "0/3 nodes are available", age=600)
        waits = environment("e", age=600, nodeName="", phase="Pending", conditions=[no_node])
        decision = seen(environment("there"), waits)
        told = conditions(decision)["Running"]["message"]
        assert "1 of 3 places of cluster.environments has no pod that runs: No node fits environment pod e" in told
        assert "ask for less in cluster.environments (replicas, cpus, memory" in told
        assert [event.reason for event in decision.events] == ["EnvironmentMissing"]
        assert seen(environment("there"), waits, status=decision.status).status is None, "it is told once"

    def test_they_hold_no_gpus_and_their_image_is_not_the_trainers(self):
        def placed(role, image):
            found = raw_pod(role, containerStatuses=[{"name": f"ray-{role}", "imageID": ""}])
            found["spec"]["containers"] = [{"name": f"ray-{role}", "image": image}]
            return found

        pods = [placed("head", TRAINER), placed("worker", TRAINER), placed("environment", PODS["image"])]
        decision = decided(raw_job(GPUS, status_of("Starting")), raw_ray_job(**RUNNING), pods=pods)
        assert decision.status["gpus"] == 2
        assert decision.status["trainerImage"] == TRAINER
