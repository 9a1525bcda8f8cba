"""Pods of separate engines: how they are rendered, and that the loss of one is no loss of the training's."""

from __future__ import annotations

import json

import pytest

from lorarl_api.faults import ManifestError
from lorarl_api.load import faults
from lorarl_operator.decide import parse
from lorarl_operator.decide.decide import decide
from lorarl_operator.decide.decision import Create, DeletePod
from lorarl_operator.decide.models import Evidence, RayCluster
from lorarl_operator.manifests.placement import _REQUIRED
from unit.contract.manifests import manifest
from unit.operator.built import built, head, workers
from unit.operator.decisions import RUNNING, conditions, decided, running_status, status_of
from unit.operator.observed_world import SETTINGS, START, ago, condition, ended, observed, raw_job, raw_pod, raw_ray_job

ENGINES = {"separateEngines": {"count": 2, "tensorParallelSize": 2}}
GPUS = {"rollout": ENGINES, "cluster": {"nodes": 2, "gpusPerNode": 4}}
TRAINS = {"workers": {"attempt": 1, "pods": ["demo-1-worker"]}, "step": 7}
READY = [condition("Ready", True)]
PODS = (raw_pod("head", conditions=READY), raw_pod("worker", conditions=READY))
ASKED_TO_GO = {"deletionTimestamp": ago(-59), "deletionGracePeriodSeconds": 60}
EVICTED = condition("DisruptionTarget", True, "EvictionByEvictionAPI", "Eviction API: evicting")


def engines(rayjob):
    [group] = rayjob["spec"]["rayClusterSpec"]["workerGroupSpecs"][1:]
    return group


def container(group):
    return group["template"]["spec"]["containers"][0]


def environment(group):
    return {each["name"]: each.get("value") for each in container(group)["env"]}


class TestRendering:
    def test_a_job_without_them_has_one_group(self):
        assert [group["groupName"] for group in built()["spec"]["rayClusterSpec"]["workerGroupSpecs"]] == ["workers"]

    def test_each_has_a_pod_with_its_own_gpus_that_takes_no_worker(self):
        rayjob = built(GPUS)
        group, trainer = engines(rayjob), workers(rayjob)
        assert (group["groupName"], group["replicas"], group["minReplicas"], group["maxReplicas"]) == (
            "engines",
            2,
            2,
            2,
        )
        params = group["rayStartParams"]
        assert (params["num-cpus"], params["num-gpus"]) == ("0", "2"), "a worker asks for a CPU"
        assert json.loads(params["resources"].strip("'")) == {"lorarl_engine": 1}
        assert "resources" not in trainer["rayStartParams"]
        assert container(group)["name"] == "ray-engine"
        assert container(group)["resources"]["limits"] == {"nvidia.com/gpu": 2}
        assert container(group)["resources"]["requests"]["cpu"] == "16"
        assert group["template"]["metadata"]["labels"]["lorarl.io/role"] == "engine"
        assert "podAntiAffinity" in trainer["template"]["spec"]["affinity"]
        assert "affinity" not in group["template"]["spec"], "several may share a node"
        assert "LORARL_PRELOAD" not in environment(group) and "LORARL_PRELOAD" in environment(trainer)

    def test_for_a_cpu_job_they_have_no_gpu(self):
        group = engines(built({"rollout": {"separateEngines": {}}}))
        assert (group["replicas"], group["rayStartParams"]["num-gpus"]) == (1, "0")
        assert "resources" not in container(group) or container(group)["resources"] == {}

    def test_they_get_the_secret_of_the_model_alone(self):
        spec = {
            "rollout": ENGINES,
            "model": {"uri": "pvc://models/base", "credentialsSecret": "hub"},
            "checkpoint": {"uri": "pvc://adapters/all", "credentialsSecret": "store"},
            "cluster": {"gpusPerNode": 2},
        }
        pod = engines(built(spec))["template"]["spec"]
        assert [each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each] == ["hub"]
        claims = [each["persistentVolumeClaim"] for each in pod["volumes"] if "persistentVolumeClaim" in each]
        assert claims == [{"claimName": "models", "readOnly": True}]
        assert pod["automountServiceAccountToken"] is False

    def test_they_use_the_workers_nodes_unless_overridden(self):
        cluster = {"gpusPerNode": 1, "nodeSelector": {"gpu": "h200"}}
        assert engines(built({"rollout": ENGINES, "cluster": cluster}))["template"]["spec"]["nodeSelector"] == {
            "gpu": "h200"
        }
        own = {"metadata": {"labels": {"lorarl.io/role": "worker"}}, "spec": {"nodeSelector": {"gpu": "l40s"}}}
        rayjob = built({"rollout": ENGINES, "cluster": cluster | {"podTemplateOverrides": {"engine": own}}})
        template = engines(rayjob)["template"]
        assert template["spec"]["nodeSelector"] == {"gpu": "l40s"}
        assert template["metadata"]["labels"]["lorarl.io/role"] == "engine"
        assert workers(rayjob)["template"]["spec"]["nodeSelector"] == {"gpu": "h200"}
        assert "nodeSelector" not in head(rayjob)["spec"]

    def test_an_override_that_cannot_be_merged_is_named(self):
        wrong = {"podTemplateOverrides": {"engine": {"spec": {"containers": [{"image": "x"}]}}}}
        with pytest.raises(ManifestError, match=r"podTemplateOverrides.engine"):
            built({"rollout": ENGINES, "cluster": {"gpusPerNode": 1} | wrong})

    def test_a_required_topology_is_for_the_workers(self):
        topology = {"key": "rack", "mode": "Preferred"}
        rayjob = built(GPUS | {"cluster": GPUS["cluster"] | {"topology": topology}})
        assert "podAffinity" in workers(rayjob)["template"]["spec"]["affinity"]
        queued = built(GPUS | {"cluster": GPUS["cluster"] | {"topology": topology}}, queued=True)
        assert "kueue.x-k8s.io/podset-preferred-topology" not in engines(queued)["template"]["metadata"]["annotations"]
        assert _REQUIRED not in json.dumps(engines(queued)["template"])


class TestContract:
    def test_overrides_for_engines_need_engines(self):
        changes = {"spec.cluster.podTemplateOverrides": {"engine": {"spec": {"nodeSelector": {"a": "b"}}}}}
        named = [fault.path for fault in faults(manifest(changes), in_cluster=True)]
        assert named == ["spec.cluster.podTemplateOverrides.engine"]

    def test_without_a_resource_the_engines_ask_for_their_gpus_by_an_override(self):
        cluster = {"gpusPerNode": 1, "gpuResource": "", "podTemplateOverrides": {"worker": {"spec": {"hostname": "a"}}}}
        changes = {"spec.cluster": cluster, "spec.rollout.separateEngines": {}}
        named = [fault.path for fault in faults(manifest(changes), in_cluster=True)]
        assert named == ["spec.cluster.podTemplateOverrides.engine"]
        cluster["podTemplateOverrides"]["engine"] = {"spec": {"hostname": "b"}}
        assert faults(manifest(changes), in_cluster=True) == []

    def test_all_pods_have_the_same_claim(self):
        changes = {
            "spec.cluster": {"gpusPerNode": 2, "gpuClaim": {"deviceClass": "gpu.nvidia.com"}},
            "spec.rollout.separateEngines": {},
        }
        named = [fault.path for fault in faults(manifest(changes), in_cluster=True)]
        assert named == ["spec.rollout.separateEngines.tensorParallelSize"]
        changes["spec.rollout.separateEngines"] = {"tensorParallelSize": 2}
        assert faults(manifest(changes), in_cluster=True) == []


def seen(*pods, status=None, departed=(), spec=GPUS, now=START, evidence=None, clusters=(), **ray_job):
    gone = tuple(parse.pod(pod) for pod in departed)
    job = raw_job(spec, running_status(**TRAINS) if status is None else status)
    ours = raw_ray_job(**RUNNING | ray_job)
    rest = {"departed": gone, "evidence": evidence, "ray_clusters": clusters}
    return decide(observed(job, ours, pods=[*PODS, *pods], **rest), now, SETTINGS)


def engine(name="e", **parts):
    return raw_pod("engine", name=name, **parts)


LOSSES = {
    "evicted": engine(conditions=[EVICTED], **ASKED_TO_GO),
    "deleted": engine(deletionTimestamp=ago(1), deletionGracePeriodSeconds=60),
    "out of memory": engine(phase="Failed", containerStatuses=ended("engine", 137, "OOMKilled")),
    "lost with its node": engine(conditions=[condition("DisruptionTarget", True, "DeletionByTaintManager", "x")]),
    "refused": engine(phase="Failed", reason="TopologyAffinityError", message="no"),
}


class TestLoss:
    @pytest.mark.parametrize("how", LOSSES)
    @pytest.mark.parametrize("gone", [False, True])
    @pytest.mark.parametrize("reported", [True, False])
    def test_the_attempt_goes_on_and_nothing_is_counted(self, how, gone, reported):
        status = running_status(**(TRAINS if reported else {"step": 0}))
        pods, departed = ([], [LOSSES[how]]) if gone else ([LOSSES[how]], [])
        decision = seen(*pods, departed=departed, status=status)
        assert decision.status is None or "recoveringSince" not in decision.status
        written = decision.status or status
        assert (written["phase"], written["preemptions"], written["attempts"]) == ("Running", 0, 0)
        assert decision.actions == ()

    def test_a_pod_on_a_lost_node_goes_without_that_nodes_word(self):
        lost = condition("DisruptionTarget", True, "DeletionByTaintManager", "x")
        overdue = engine(conditions=[lost], deletionTimestamp=ago(40), deletionGracePeriodSeconds=10)
        assert seen(overdue).actions == (DeletePod("e", "pod-engine-1", at_once=True),)
        going = engine(conditions=[lost], deletionTimestamp=ago(-5), deletionGracePeriodSeconds=10)
        decision = seen(going)
        assert decision.actions == () and decision.recheck_seconds is not None

    def test_a_drain_of_its_node_asks_for_no_checkpoint(self):
        spec = GPUS | {"cluster": GPUS["cluster"] | {"disruption": "AfterCheckpoint"}}
        cordoned = Evidence(cordoned=frozenset(["node-9"]))
        decision = seen(engine(nodeName="node-9"), spec=spec, evidence=cordoned)
        assert decision.status is None or "Disrupted" not in conditions(decision)
        [budget] = [one.manifest for one in decision.actions if isinstance(one, Create)]
        assert budget["spec"]["minAvailable"] == 3, "the head and two workers"
        roles = budget["spec"]["selector"]["matchExpressions"][0]["values"]
        assert "engine" not in roles, "so an eviction of an engine does not wait"

    def test_a_report_that_all_are_lost_is_believed_if_the_cluster_shows_it(self):
        failure = {"failure": {"reason": "NodeLost", "message": "no engine has a pod", "attempt": 1}}
        status = running_status(**TRAINS | failure)
        end = {"jobDeploymentStatus": "Failed", "jobStatus": "FAILED", "endTime": ago(30)}
        shown = seen(status=status, departed=[LOSSES["deleted"] | {}], **end)
        assert (shown.status["preemptions"], shown.status["attempts"]) == (1, 0)
        invented = seen(status=status, **end)
        assert (invented.status["preemptions"], invented.status["attempts"]) == (0, 1)

    def test_an_engine_that_ended_by_itself_shows_no_loss(self):
        """The job's own code may end it, and report whatever it likes."""
        failure = {"failure": {"reason": "Interrupted", "message": "SIGTERM", "attempt": 1}}
        end = {"jobDeploymentStatus": "Failed", "jobStatus": "FAILED", "endTime": ago(10)}
        deleted_by_kuberay = {"deletionTimestamp": ago(20), "deletionGracePeriodSeconds": 0}
        gone = LOSSES["out of memory"] | {"metadata": LOSSES["out of memory"]["metadata"] | deleted_by_kuberay}
        status = running_status(**TRAINS | failure)
        decision = seen(engine("e2", age=15), status=status, departed=[gone], **end)
        assert (decision.status["preemptions"], decision.status["attempts"]) == (0, 1)

    def test_three_losses_before_the_attempt_runs_end_it(self):
        crashed = [
            parse.pod(engine(f"e{n}", phase="Failed", containerStatuses=ended("engine", 137, "OOMKilled", age=9 - n)))
            for n in range(3)
        ]
        up = raw_ray_job(jobDeploymentStatus="Initializing")
        job = raw_job(GPUS, status_of("Starting", startTime=ago(9)))
        two = decided(job, up, pods=list(PODS), departed=tuple(crashed[:2]))
        assert two.status["phase"] != "Restarting"
        assert "engine pod e1 on node node-1 used more memory" in conditions(two)["Running"]["message"]
        three = decided(job, up, pods=list(PODS), departed=tuple(crashed))
        assert (three.status["phase"], three.status["attempts"]) == ("Restarting", 1)


class TestAccounting:
    def test_their_gpus_are_held_too(self):
        job = raw_job(GPUS, status_of("Starting"))
        placed = engine(age=90, conditions=[condition("PodScheduled", True, age=90)])
        decision = decided(job, raw_ray_job(**RUNNING), pods=[*PODS, placed])
        status = decision.status
        assert (status["gpus"], status["gpusHeldSince"], status["heldGpuSeconds"]) == (2 * 4 + 2, ago(0), 2 * 90)
        cpu = decided(raw_job({"rollout": {"separateEngines": {}}}, status_of("Starting")), raw_ray_job(**RUNNING))
        assert not cpu.status.get("gpus")

    def test_one_without_a_node_is_not_paid_for_and_is_named(self):
        status = running_status(**TRAINS, gpus=12, gpusHeldSince=ago(100))
        no_node = condition("PodScheduled", False, "Unschedulable", "0/3 nodes are available", age=600)
        waits = engine("e", age=600, nodeName="", phase="Pending", conditions=[no_node])
        decision = seen(engine("there"), waits, status=status)
        assert (decision.status["gpus"], decision.status["heldGpuSeconds"]) == (10, 12 * 100)
        told = conditions(decision)["Running"]["message"]
        assert "1 of 2 engines has no pod that runs: No node fits engine pod e: 0/3 nodes are available" in told
        assert [event.reason for event in decision.events] == ["EngineMissing"]
        again = seen(engine("there"), waits, status=decision.status)
        assert again.status is None, "it is told once"

    def test_one_that_a_quota_lets_no_one_create_is_named(self):
        quota = 'FailedCreateWorkerPod\npods "cluster-1-engines-worker-ab1" is forbidden: exceeded quota: gpus'
        cluster = RayCluster("cluster-1", "uid", "1", "job-uid", "demo-1", "FailedCreateWorkerPod", quota)
        decision = seen(engine("there"), clusters=(cluster,))
        told = conditions(decision)["Running"]["message"]
        assert "1 of 2 engines has no pod that runs: its pod is forbidden: exceeded quota: gpus" in told
        assert [event.reason for event in decision.events] == ["EngineMissing"]
        assert "engines" not in conditions(seen(engine("there")))["Running"]["message"], "KubeRay is about to make it"

    def test_one_that_has_just_been_replaced_is_looked_at_again(self):
        status = running_status(**TRAINS, gpus=10, gpusHeldSince=ago(100))
        decision = seen(engine("there"), engine("new", age=1, nodeName="", phase="Pending"), status=status)
        assert decision.status is None
        assert decision.recheck_seconds == pytest.approx(SETTINGS.stuck_seconds - 1, abs=1)

    def test_one_that_ran_out_of_memory_is_named_with_its_limit(self):
        decision = seen(engine(), engine("e2"), departed=[LOSSES["out of memory"] | {}])
        told = conditions(decision)["Running"]["message"]
        assert "engine pod e on node node-1 used more memory than its limit. Raise cluster.memoryPerNode, or" in told
        assert "maxResponseTokens" not in told
        assert [event.reason for event in decision.events] == ["EngineFailed"]

    def test_an_attempt_that_waits_for_one_gives_its_machines_back(self):
        limit = SETTINGS.partly_placed_seconds
        scheduled = condition("PodScheduled", True, age=3 * limit)
        no_node = condition("PodScheduled", False, "Unschedulable", "0/3 nodes are available", age=3 * limit)
        pods = [
            raw_pod("worker", name="w", age=3 * limit, conditions=[scheduled]),
            raw_pod("engine", name="e", age=3 * limit, nodeName="", phase="Pending", conditions=[no_node]),
        ]
        job = raw_job(GPUS, status_of("Pending", startTime=ago(3 * limit)))
        up = raw_ray_job(jobDeploymentStatus="Initializing")
        decision = decided(job, up, pods=pods)
        assert decision.status["phase"] == "Restarting"
        message = conditions(decision)["Running"]["message"]
        assert message.startswith("Attempt 1 had 1 of 2 pods placed")
        assert "ask for less in cluster (cpusPerNode, memoryPerNode, nodeSelector) or cluster.podTemplate" in message
        assert "For other rollout.separateEngines, delete the job and apply it again" in message
