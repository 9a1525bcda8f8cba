"""Which nodes the pods of an attempt get."""

from __future__ import annotations

import pytest

from lorarl_api.faults import ManifestError
from lorarl_operator.manifests.placement import NO_NODES, Avoided, avoid
from unit.operator.built import built, head, workers
from unit.operator.decisions import conditions, decided
from unit.operator.observed_world import raw_job

QUEUE = {"kueue.x-k8s.io/queue-name": "research"}
GPU_TAINT = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
TEAM_TAINT = {"key": "example.com/team", "operator": "Exists"}


def topology(mode, **cluster):
    return {"cluster": {"nodes": 2, "gpusPerNode": 1, "topology": {"key": "example.com/rack", "mode": mode}, **cluster}}


UNREACHABLE = {
    "key": "node.kubernetes.io/unreachable",
    "operator": "Exists",
    "effect": "NoExecute",
    "tolerationSeconds": 60,
}


class TestHead:
    def test_the_head_of_a_gpu_job_leaves_gpu_nodes_to_the_workers(self):
        rayjob = built({"cluster": {"gpusPerNode": 8, "tolerations": [GPU_TAINT], "nodeSelector": {"gpu": "h200"}}})
        worker, pod = workers(rayjob)["template"]["spec"], head(rayjob)["spec"]
        assert (worker["tolerations"], worker["nodeSelector"]) == ([GPU_TAINT, UNREACHABLE], {"gpu": "h200"})
        assert pod["tolerations"] == [UNREACHABLE]
        assert "nodeSelector" not in pod
        (preferred,) = pod["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        assert {"key": "nvidia.com/gpu.present", "operator": "DoesNotExist"} in preferred["preference"][
            "matchExpressions"
        ]
        assert "affinity" not in worker

    @pytest.mark.parametrize(
        ("own", "added"),
        [
            ([], True),
            ([{"operator": "Exists", "effect": "NoSchedule"}], True),
            ([{"operator": "Exists"}], False),
            ([UNREACHABLE | {"tolerationSeconds": 300}], False),
        ],
    )
    def test_pods_leave_a_silent_node_soon_unless_the_job_says_when(self, own, added):
        rayjob = built({"cluster": {"tolerations": own}})
        for pod in (workers(rayjob)["template"]["spec"], head(rayjob)["spec"]):
            assert (UNREACHABLE in pod["tolerations"]) is added
            assert len(pod["tolerations"]) == len(own) + added

    def test_the_head_has_its_own_nodes_if_the_job_says_so(self):
        chosen = {"nodeSelector": {"pool": "cpu"}, "tolerations": [TEAM_TAINT]}
        pod = head(built({"cluster": {"gpusPerNode": 8, "tolerations": [GPU_TAINT], "head": chosen}}))["spec"]
        assert (pod["nodeSelector"], pod["tolerations"]) == ({"pool": "cpu"}, [TEAM_TAINT, UNREACHABLE])
        assert "affinity" not in pod

    def test_the_head_of_a_cpu_job_tolerates_what_its_workers_do(self):
        pod = head(built({"cluster": {"tolerations": [TEAM_TAINT]}}))["spec"]
        assert pod["tolerations"] == [TEAM_TAINT, UNREACHABLE]
        assert "affinity" not in pod
        none = head(built({"cluster": {"tolerations": [TEAM_TAINT], "head": {"tolerations": []}}}))["spec"]
        assert none["tolerations"] == [UNREACHABLE]

    def test_the_submitter_runs_where_the_head_does(self):
        chosen = {"nodeSelector": {"pool": "cpu"}, "tolerations": [TEAM_TAINT]}
        rayjob = built({"cluster": {"gpusPerNode": 8, "submissionMode": "K8sJobMode", "head": chosen}})
        pod = rayjob["spec"]["submitterPodTemplate"]["spec"]
        assert (pod["nodeSelector"], pod["tolerations"]) == ({"pool": "cpu"}, [TEAM_TAINT])


class TestTopology:
    @pytest.mark.parametrize("mode", ["Required", "Preferred"])
    @pytest.mark.parametrize("how", [{"labels": QUEUE}, {"queued": True}], ids=["label", "default queue"])
    def test_in_a_queue_kueue_keeps_it(self, mode, how):
        template = workers(built(topology(mode), **how))["template"]
        key = f"kueue.x-k8s.io/podset-{mode.lower()}-topology"
        assert template["metadata"]["annotations"][key] == "example.com/rack"
        assert "podAffinity" not in template["spec"]["affinity"]

    def test_without_a_queue_a_preferred_one_is_an_affinity(self):
        affinity = workers(built(topology("Preferred")))["template"]["spec"]["affinity"]
        assert "example.com/rack" in str(affinity["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"])
        assert affinity["podAntiAffinity"]

    def test_without_a_queue_a_required_one_is_refused(self):
        """The first worker would choose the domain, and the others might never find room there."""
        with pytest.raises(ManifestError, match=r"spec.cluster.topology.mode: got Required.*kueue.x-k8s.io/queue-name"):
            built(topology("Required"))
        waits = conditions(decided(raw_job(topology("Required"))))["Running"]
        assert waits["reason"] == "Invalid"

    @pytest.mark.parametrize(
        ("cluster", "labels"),
        [
            ({"nodes": 1}, {}),
            ({"schedulerName": "volcano"}, {}),
            ({}, {"kai.scheduler/queue": "research"}),
            ({}, {"ray.io/scheduler-name": "yunikorn"}),
        ],
    )
    def test_one_node_or_a_gang_scheduler_can_keep_a_required_one(self, cluster, labels):
        affinity = workers(built(topology("Required", **cluster), labels=labels))["template"]["spec"]["affinity"]
        assert "example.com/rack" in str(affinity["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"])


def test_nodes_are_avoided_whatever_affinity_a_pod_has():
    zone = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    rack = {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["old"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [zone, rack]}}
    template = {"spec": {"affinity": {"podAffinity": {}, "nodeAffinity": required}}}
    avoid(template, Avoided(never=("bad",)))
    bad = {"key": "metadata.name", "operator": "NotIn", "values": ["bad"]}
    assert template["spec"]["affinity"] == {
        "podAffinity": {},
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [zone | {"matchFields": [bad]}, {"matchFields": [*rack["matchFields"], bad]}]
            }
        },
    }


def test_nodes_that_are_used_last_are_one_more_preference():
    template = {"spec": {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": ["theirs"]}}}}
    avoid(template, Avoided(last=("a", "b")))
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in ("a", "b")]
    assert template["spec"]["affinity"]["nodeAffinity"] == {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            "theirs",
            {"weight": 100, "preference": {"matchFields": fields}},
        ]
    }


def test_without_such_nodes_nothing_changes():
    template = {"spec": {}}
    avoid(template, NO_NODES)
    assert template == {"spec": {}}
