"""Failures that another attempt would end with too."""

from __future__ import annotations

import pytest

from unit.operator.decisions import conditions, decided, running_status
from unit.operator.observed_world import ago, raw_job, raw_pod, raw_ray_job


def failed_for(reason, *, attempt=1, node="", spec=None, **status):
    failure = {"reason": reason, "message": "spec.model.uri: got a mixture of experts", "attempt": attempt}
    job = raw_job(spec, running_status(failure=failure) | {"rayJobName": f"demo-{attempt}"} | status)
    ray_job = raw_ray_job(attempt, jobDeploymentStatus="Failed", jobStatus="FAILED", endTime=ago(30))
    nodes = [node] if isinstance(node, str) else node
    pods = [raw_pod("worker", attempt, name=f"worker-{number}", nodeName=one) for number, one in enumerate(nodes)]
    return decided(job, ray_job, pods=[raw_pod("head", attempt, nodeName="head-node"), *pods])


@pytest.mark.parametrize("reason", ["InvalidInput", "Fenced", "GradientNotFinite"])
def test_a_permanent_fault_never_takes_a_gpu_twice(reason):
    decision = failed_for(reason, spec={"backoffLimit": 3})
    assert decision.status["phase"] == "Failed"
    assert decision.status["attempts"] == 1
    failed = conditions(decision)["Failed"]
    assert failed["reason"] == reason
    assert failed["message"] == "Attempt 1 failed, and so would another one. spec.model.uri: got a mixture of experts"


def test_a_suspended_job_with_bad_input_has_failed_too():
    assert failed_for("InvalidInput", spec={"suspend": True}).status["phase"] == "Failed"


def test_a_fault_that_may_pass_is_retried():
    assert failed_for("StorageFailed").status["phase"] == "Restarting"


class TestPolicyDrift:
    def drifted(self, node, before=None, step=12, **rest):
        status = {"step": step} | ({"policyDrift": before} if before else {})
        return failed_for("PolicyDrift", attempt=2, node=node, **status, **rest)

    def test_the_first_one_is_retried_and_remembered(self):
        decision = self.drifted("node-a")
        assert decision.status["phase"] == "Restarting"
        assert decision.status["policyDrift"] == {"step": 12, "nodes": ["node-a"]}

    def test_after_the_same_step_on_another_node_it_is_final(self):
        decision = self.drifted("node-b", {"step": 12, "nodes": ["node-a"]})
        failed = conditions(decision)["Failed"]
        assert failed["reason"] == "PolicyDrift"
        assert failed["message"].startswith("Attempt 2 failed, and an earlier one failed so too, after the same step")
        assert "on other nodes (node-a, now node-b). " in failed["message"]

    def test_on_the_same_node_the_node_is_suspected(self):
        decision = self.drifted("node-a", {"step": 12, "nodes": ["node-a"]})
        assert decision.status["phase"] == "Restarting"
        assert decision.status["policyDrift"] == {"step": 12, "nodes": ["node-a"]}

    def test_the_nodes_that_all_attempts_had_stay_under_suspicion(self):
        decision = self.drifted(["node-b", "node-c"], {"step": 12, "nodes": ["node-a", "node-b"]})
        assert decision.status["policyDrift"] == {"step": 12, "nodes": ["node-b"]}
        assert self.drifted(["node-a", "node-c"], {"step": 12, "nodes": ["node-b"]}).status["phase"] == "Failed"

    def test_after_another_step_it_is_another_one(self):
        decision = self.drifted("node-b", {"step": 11, "nodes": ["node-a"]})
        assert decision.status["phase"] == "Restarting"
        assert decision.status["policyDrift"] == {"step": 12, "nodes": ["node-b"]}

    @pytest.mark.parametrize(("before", "now"), [([], "node-a"), (["node-a"], ""), ([], "")])
    def test_where_a_node_is_unknown_the_second_one_is_final(self, before, now):
        decision = self.drifted(now, {"step": 12, "nodes": before})
        assert decision.status["phase"] == "Failed"

    @pytest.mark.parametrize("garbage", [{}, {"step": 12}, {"step": "12", "nodes": []}, {"step": 12, "nodes": [1]}])
    def test_a_record_that_is_not_whole_is_none(self, garbage):
        assert self.drifted("node-b", garbage).status["phase"] == "Restarting"

    def test_retries_are_limited_in_any_case(self):
        assert self.drifted("node-a", spec={"backoffLimit": 0}).status["phase"] == "Failed"
