"""An increase of `trainer.steps` that the training never saw."""

from __future__ import annotations

import copy
from datetime import timedelta

import pytest

from lorarl_operator.decide.decision import Delete
from unit.operator.decisions import decided, running_status
from unit.operator.observed_world import SPEC, START, ago, raw_job, raw_ray_job


class TestLateSteps:
    """The training ended at step 200. `trainer.steps` was raised to 400 just before."""

    ENDED = raw_ray_job(jobDeploymentStatus="Complete", jobStatus="SUCCEEDED")
    ADAPTER = "s3://team/adapters/demo/iter_0000200/lora_adapter"

    def ended(self, phase="Running", step=200, total=200, spec=None, **rest):
        status = running_status(step=step, totalSteps=total, adapter={"uri": self.ADAPTER}) | {"phase": phase, **rest}
        return raw_job({"trainer": {"steps": 400}} | (spec or {}), status, generation=2)

    def test_the_next_attempt_does_them_and_nothing_is_counted(self):
        decision = decided(self.ended(), self.ENDED)
        assert (decision.status["phase"], decision.status["rayJobName"], decision.status["restarts"]) == (
            "Restarting",
            "demo-2",
            0,
        )
        assert "completionTime" not in decision.status
        assert decision.actions == (Delete("RayJob", "demo-1", "ray-1"),)
        assert decision.recheck_seconds == 1
        (event,) = decision.events
        assert (event.type, event.reason) == ("Normal", "MoreSteps")
        assert "trainer.steps is now 400; attempt 2 does the remaining steps" in event.message
        made = (
            decided(self.ended() | {"status": decision.status}, now=START + timedelta(seconds=1)).actions[-1].manifest
        )
        assert made["metadata"]["name"] == "demo-2"

    def made_from(self, generation):
        ray_job = copy.deepcopy(self.ENDED)
        ray_job["metadata"]["annotations"]["lorarl.io/generation"] = str(generation)
        return ray_job

    def test_an_attempt_created_for_them_is_the_last_one(self):
        assert decided(self.ended(), self.made_from(2)).status["phase"] == "Succeeded"

    @pytest.mark.parametrize(("step", "total"), [(400, 400), (400, 200), (450, 450), (None, None), ("200", -1)])
    def test_if_it_saw_them_or_never_reported_it_has_succeeded(self, step, total):
        decision = decided(self.ended(step=step, total=total), self.ENDED)
        assert decision.status["phase"] == "Succeeded"
        assert [event.reason for event in decision.events] == ["Succeeded"]

    def test_fewer_steps_leave_nothing_to_do(self):
        decision = decided(self.ended(spec={"trainer": {"steps": 100}}), self.ENDED)
        assert [event.reason for event in decision.events] == ["Succeeded"]

    @pytest.mark.parametrize(
        "spec",
        [{"checkpoint": SPEC["checkpoint"] | {"resume": "Never"}}, {"adapter": {"targetModules": []}}],
        ids=["never", "invalid"],
    )
    def test_without_a_resume_it_has_succeeded_and_reports_the_missing_steps(self, spec):
        decision = decided(self.ended(spec=spec), self.ENDED)
        assert decision.status["phase"] == "Succeeded"
        assert [event.reason for event in decision.events] == ["Succeeded", "TooLate"]

    def test_a_suspended_job_does_them_when_it_is_resumed(self):
        decision = decided(self.ended(spec={"suspend": True}), self.ENDED)
        assert (decision.status["phase"], decision.status["restarts"]) == ("Suspending", 0)
        assert decision.actions == (Delete("RayJob", "demo-1", "ray-1"),)
        resumed = decided(self.ended(**decision.status))
        assert resumed.actions[-1].manifest["metadata"]["name"] == "demo-2"

    def test_a_finished_job_does_none_and_says_so_once(self):
        job = self.ended("Succeeded", completionTime=ago(5))
        decision = decided(job, self.ENDED)
        assert (decision.status["phase"], decision.status["observedGeneration"], decision.actions) == (
            "Succeeded",
            2,
            (),
        )
        (event,) = decision.events
        assert (event.type, event.reason) == ("Warning", "TooLate")
        assert "trainer.steps is now 400, but the job ended at step 200" in event.message
        assert f"adapter.initFrom: {self.ADAPTER}" in event.message
        assert not decided(job | {"status": job["status"] | decision.status}, self.ENDED).events
