"""Helpers for tests of `decide`: they observe a job once and decide."""

from __future__ import annotations

from lorarl_operator.decide.decide import decide
from lorarl_operator.decide.models import Evidence, Workload
from unit.operator.observed_world import SETTINGS, START, ago, condition, observed, raw_ray_job

QUEUE = {"kueue.x-k8s.io/queue-name": "research"}
DELETE = {"checkpoint": {"uri": "s3://team/adapters", "deletionPolicy": "Delete"}}
RUNNING = {"jobDeploymentStatus": "Running", "jobStatus": "RUNNING"}


PREEMPTED = Evidence(workload=Workload("rayjob-demo-1", (("Evicted", True, "Preempted", ""),)))
"""What Kueue says of a RayJob whose machines it gave to another."""
REFUSED_BY_ADMISSION = (
    'admission webhook "validate.kyverno.svc-fail" denied the request: not here',
    "lorarljobs.lorarl.io \"a\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: not here",
)
"""What the API server says if not its own rules refuse an object."""


def status_of(phase, name="demo-1", **rest):
    counters = {"attempts": 0, "preemptions": 0, "restarts": 0, "observedGeneration": 1}
    if phase == "Restarting":  # the condition changed when the attempt ended
        rest = {"attemptEndTime": rest["conditions"][0]["lastTransitionTime"], **rest} if "conditions" in rest else rest
    return counters | ({"rayJobName": name} if name else {}) | {"phase": phase, **rest}


def running_status(**rest):
    return status_of(
        "Running",
        startTime=ago(50),
        conditions=[condition("Running", True, "Running", "Attempt 1 is training in RayJob demo-1.", age=50)],
        **rest,
    )


def conditions(decision):
    return {each["type"]: each for each in decision.status["conditions"]}


def kinds(actions):
    return [action.manifest["kind"] for action in actions]


def decided(*args, now=START, **kwargs):
    return decide(observed(*args, **kwargs), now, SETTINGS)


def gone_since(seconds):
    """A RayJob whose deletion was requested this long ago, and that a foreign finalizer blocks."""
    ray_job = raw_ray_job(**RUNNING)
    ray_job["metadata"] |= {"deletionTimestamp": ago(seconds), "finalizers": ["example.com/hold"]}
    return ray_job
