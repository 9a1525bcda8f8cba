"""Random histories of a job with separate engines: whatever happens to an engine, the attempt continues."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unit.operator.observed_world import condition, ended
from unit.operator.test_world import MOVES, STORIES, Life, ended_well, move
from unit.operator.world import _role

SPEC = {"rollout": {"separateEngines": {"count": 2}}, "maxPreemptionsWithoutProgress": 1000}
ENGINE = ("engine",)
STEPS = st.sampled_from([*([one] for one in MOVES), *STORIES * 3, *(ENGINE,) * 40])


class EngineLife(Life):
    """A world in which two pods with engines come up beside the head and the worker."""

    def bring_up(self) -> None:
        made = self.made
        super().bring_up()
        for _ in range(2 if self.made > made else 0):
            self._add_pod("engine", self._attempt(), self.current["status"]["rayClusterName"])

    def replace_workers(self) -> None:
        others = [pod for pod in self.pods if _role(pod) == "engine"]
        self.pods = [pod for pod in self.pods if _role(pod) != "engine"]
        super().replace_workers()
        self.pods += others

    def lose_engine(self, rng: random.Random) -> None:
        """KubeRay replaces an engine's pod that is evicted, deleted, out of memory, or on a lost node."""
        cluster = self.current["status"]["rayClusterName"]
        engines = [pod for pod in self.here(cluster) if _role(pod) == "engine"]
        if not engines:
            return
        pod, status = rng.choice(engines), {}
        match rng.choice(["evicted", "deleted", "out of memory", "silent"]):
            case "evicted":
                status = {"conditions": [condition("DisruptionTarget", True, "PreemptionByScheduler", "preempted")]}
                self.ask_to_go(pod)
            case "deleted":
                self.ask_to_go(pod)
            case "out of memory":
                status = {"phase": "Failed", "containerStatuses": ended("engine", 137, "OOMKilled")}
            case "silent":
                status = {"conditions": [condition("Ready", False), condition("ContainersReady", True)]}
        pod["status"] |= status
        self._add_pod("engine", self._attempt(), cluster)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    parts=st.lists(STEPS, min_size=10, max_size=60),
    seed=st.integers(0, 2**16),
    queued=st.booleans(),
    recovers=st.booleans(),
)
def test_the_loss_of_an_engine_ends_no_attempt_and_counts_as_nothing(parts, seed, queued, recovers):
    rng = random.Random(seed)
    queue = {"kueue.x-k8s.io/queue-name": "research"} if queued else None
    world = EngineLife(SPEC | {"backoffLimit": 1000}, queue, recovers=recovers)
    for name in (name for part in parts for name in part):
        if name != "engine":
            move(world, name, rng)
        elif world.job and world.current and world.current["status"].get("jobDeploymentStatus") == "Running":
            world.settle()
            before = (world.phase, world.counters())
            if world.phase != "Running" or not world.current:
                continue
            world.lose_engine(rng)
            world.settle()
            assert (world.phase, world.counters()) == before
    ended_well(world)
    attempts, preemptions = world.counters()
    assert preemptions <= len(world.lost)
    assert len(world.plain_failures) <= attempts <= len(world.failures)
