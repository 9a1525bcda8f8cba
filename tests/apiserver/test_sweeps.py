"""Sweeps in a cluster: the real API server and its controllers, KubeRay on simulated nodes, and the operator's process.

The trainings are what tests report of them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lorarl_api.v1alpha1 import LoRARLSweepStatus
from support.cluster.audit import account, refused, writes
from support.cluster.client import ApiError, Object
from support.cluster.crds import CRDS
from support.cluster.lorarljobs import condition, lorarljob, phase
from support.cluster.operator import ROOT, SYSTEM, Operator, operator, prepare, quiet, wait_leader
from support.cluster.platform import Platform, platform
from support.cluster.processes import until
from support.cluster.sweeps import KIND, lorarlsweep, phases, reports_loss
from support.cluster.tools import tools_or_skip
from support.helm import rendered

ACCOUNT = "operator-lorarl"
"""The name that the chart gives it: the chart's policy for the account applies to these tests."""
OPERATOR = account(SYSTEM, ACCOUNT)
SECONDS = 60.0
PAGE = (ROOT / "docs/sweeps.md").read_text()


@pytest.fixture(scope="module")
def p(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with tools_or_skip(), platform(tmp_path_factory.mktemp("sweeps"), crds=CRDS, audit=True) as running:
        for one in (one for one in rendered() if one["kind"].startswith("ValidatingAdmissionPolicy")):
            running.cluster.must("apply", "-f", "-", stdin=json.dumps(one))
        yield running


@contextmanager
def leading(p: Platform, name: str) -> Iterator[Operator]:
    with operator(p.cluster, prepare(p.cluster, account=ACCOUNT), name) as one:
        wait_leader(one)
        yield one


@pytest.fixture
def replica(p: Platform, request: pytest.FixtureRequest) -> Iterator[Operator]:
    with leading(p, request.node.name[:30]) as one:
        yield one


def wait(p: Platform, namespace: str, wanted: dict[str, str] | str, name: str = "sums") -> Object:
    """The sweep when its trials are in these phases, or it is in this one."""

    def holds(sweep: Object) -> bool:
        return (phase(sweep) if isinstance(wanted, str) else phases(sweep)) == wanted

    found = p.api.wait(KIND, name, namespace, holds, seconds=SECONDS)
    LoRARLSweepStatus.model_validate(found["status"])
    return found


def wait_jobs(p: Platform, namespace: str, *numbers: int) -> None:
    """Return when these trials train, and there are no other jobs than those and older ones."""
    for number in numbers:
        p.wait_running(namespace, f"sums-seed-{number}-1", seconds=SECONDS)
        p.api.wait("LoRARLJob", f"sums-seed-{number}", namespace, lambda job: phase(job) == "Running", seconds=SECONDS)


def names(p: Platform, namespace: str) -> list[str]:
    return sorted(one["metadata"]["name"].removeprefix("sums-seed-") for one in p.api.list("LoRARLJob", namespace))


def finish(p: Platform, namespace: str, number: int, status: str = "SUCCEEDED") -> None:
    p.finish(namespace, f"sums-seed-{number}-1", status)


def events(p: Platform, namespace: str, name: str = "sums") -> list[str]:
    found = p.api.list("Event", namespace, fields=f"involvedObject.name={name},involvedObject.kind={KIND}")
    return [one["reason"] for one in found]


def test_four_trials_run_two_at_a_time_and_the_best_is_named(p: Platform, replica: Operator) -> None:
    namespace = p.namespace("four")
    labels = {"kueue.x-k8s.io/priority-class": "low", "team": "a"}
    p.api.create(lorarlsweep(namespace, "sums", labels=labels))
    wait_jobs(p, namespace, 0, 1)
    assert names(p, namespace) == ["0", "1"]
    made = p.api.get("LoRARLJob", "sums-seed-1", namespace) or {}
    assert made["spec"]["trainer"]["seed"] == 1
    assert made["metadata"]["labels"] == {"kueue.x-k8s.io/priority-class": "low", "lorarl.io/sweep": "sums"}
    reports_loss(p.api, namespace, "sums-seed-0", 10, 0.9)
    reports_loss(p.api, namespace, "sums-seed-1", 10, 0.7)
    finish(p, namespace, 0)
    wait_jobs(p, namespace, 2)
    assert names(p, namespace) == ["0", "1", "2"]
    finish(p, namespace, 1)
    wait_jobs(p, namespace, 3)
    reports_loss(p.api, namespace, "sums-seed-3", 10, 0.8)
    for number in (2, 3):
        finish(p, namespace, number)
    found = wait(p, namespace, "Succeeded")
    assert found["status"]["best"]["name"] == "sums-seed-1" and found["status"]["best"]["value"] == 0.7
    assert found["status"]["best"]["uri"].startswith("s3://team/adapters/sums-seed-1/")
    assert found["status"]["best"]["sha256"] == "0000000a" * 8
    p.cluster.must("wait", "lrs/sums", "--for=condition=Complete", "-n", namespace, "--timeout=5s")
    shown = p.cluster.must("get", "lorarlsweeps", "-n", namespace).splitlines()
    assert shown[0].split() == ["NAME", "PHASE", "TRIALS", "FINISHED", "BEST", "VALUE", "AGE"]
    assert shown[1].split()[:6] == ["sums", "Succeeded", "4", "4", "sums-seed-1", "0.7"]
    quiet(3, lambda: len(writes(p.cluster.audit_log, OPERATOR, namespace)))
    before = len(writes(p.cluster.audit_log, OPERATOR, namespace))
    p.api.patch(KIND, "sums", {"metadata": {"annotations": {"any": "news"}}}, namespace)
    quiet(5, lambda: len(writes(p.cluster.audit_log, OPERATOR, namespace)))
    assert len(writes(p.cluster.audit_log, OPERATOR, namespace)) == before, "nothing is written at rest"
    said = events(p, namespace)
    assert said.count("TrialMade") == said.count("TrialSucceeded") == 4 and said.count("Complete") == 1
    assert refused(p.cluster.audit_log, OPERATOR) == []


def test_a_refused_trial_is_named_and_stops_no_other(p: Platform, replica: Operator) -> None:
    namespace = p.namespace("refused")
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "no-thirteen"},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": ["lorarl.io"],
                        "apiVersions": ["*"],
                        "resources": ["lorarljobs"],
                        "operations": ["CREATE"],
                    }
                ]
            },
            "validations": [{"expression": "object.spec.adapter.rank != 13", "message": "13 brings bad luck."}],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "no-thirteen"},
        "spec": {"policyName": "no-thirteen", "validationActions": ["Deny"]},
    }
    for one in (policy, binding):
        p.cluster.must("apply", "-f", "-", stdin=json.dumps(one))
    unlucky = lorarljob(namespace, "unlucky", adapter={"rank": 13, "targetModules": ["all-linear"]}, suspend=True)

    def in_force() -> bool:
        try:
            p.api.create(unlucky)
        except ApiError as error:
            return "bad luck" in str(error)
        p.api.delete("LoRARLJob", "unlucky", namespace)
        return False

    until(20, "the policy is in force", in_force)
    p.api.create(lorarljob(namespace, "sums-rank-6", suspend=True))
    over = [{"path": "spec.adapter.rank", "values": [0, 13, 6, 4]}]
    p.api.create(lorarlsweep(namespace, "sums", over=over, parallelism=1))
    p.wait_running(namespace, "sums-rank-4-1", seconds=SECONDS)
    p.finish(namespace, "sums-rank-4-1", "SUCCEEDED")
    found = wait(p, namespace, {"0": "Refused", "13": "Waiting", "6": "Waiting", "4": "Succeeded"})
    zero, thirteen, six, _ = found["status"]["trials"]
    assert "spec.adapter.rank: got 0, expected an integer from 1 to 512" in zero["message"]
    assert thirteen["reason"] == "Forbidden" and "13 brings bad luck." in thirteen["message"]
    assert six["reason"] == "NameTaken" and "is not of this sweep" in six["message"]
    assert condition(found, "Stalled")["reason"] == "TrialsWait"
    p.cluster.must("delete", "validatingadmissionpolicybinding", "no-thirteen")


def test_a_trial_below_the_median_is_stopped_and_keeps_its_adapter(p: Platform, replica: Operator) -> None:
    namespace = p.namespace("median")
    median = {"median": {"startAfter": 4, "minTrials": 1}}
    p.api.create(lorarlsweep(namespace, "sums", stopping=median))
    wait_jobs(p, namespace, 0, 1)
    reports_loss(p.api, namespace, "sums-seed-0", 5, 0.5)
    reports_loss(p.api, namespace, "sums-seed-1", 3, 0.9)
    reports_loss(p.api, namespace, "sums-seed-1", 5, 0.8)
    p.api.wait("LoRARLJob", "sums-seed-1", namespace, lambda job: phase(job) == "Suspended", seconds=SECONDS)
    wait_jobs(p, namespace, 2)
    found = wait(p, namespace, {"0": "Running", "1": "Stopped", "2": "Running", "3": "Waiting"})
    stopped = found["status"]["trials"][1]
    assert stopped["stopped"] == {"step": 5, "value": 0.8, "median": 0.5, "others": 1}
    assert stopped["uri"].endswith("iter_0000005/lora_adapter") and found["status"]["best"]["name"] == "sums-seed-0"
    until(20, "an Event says so", lambda: "Stopped" in events(p, namespace))
    exempt = {"spec": {"stopping": {"exempt": ["sums-seed-1"]}}}
    p.api.patch(KIND, "sums", exempt, namespace)
    finish(p, namespace, 0)
    p.wait_running(namespace, "sums-seed-1-2", seconds=SECONDS)
    wait(p, namespace, {"0": "Succeeded", "1": "Running", "2": "Running", "3": "Waiting"})


def test_halving_holds_a_trial_at_a_rung_until_another_operator_stops_it(p: Platform) -> None:
    namespace = p.namespace("halving")
    halving = {"halving": {"startAfter": 4, "factor": 3}}
    over = [{"path": "spec.trainer.seed", "values": [0, 1, 2]}]
    with leading(p, "halving-1"):
        p.api.create(lorarlsweep(namespace, "sums", stopping=halving, over=over))
        wait_jobs(p, namespace, 0, 1)
        reports_loss(p.api, namespace, "sums-seed-0", 5, 0.5)
        wait_jobs(p, namespace, 1, 2)
        found = wait(p, namespace, {"0": "Suspended", "1": "Running", "2": "Running"})
        held = found["status"]["trials"][0]
        assert held["reason"] == "AtRung" and held["rungs"] == [{"step": 4, "value": 0.5, "promoted": False}]
    with leading(p, "halving-2"):
        reports_loss(p.api, namespace, "sums-seed-1", 4, 0.4)
        found = wait(p, namespace, {"0": "Stopped", "1": "Running", "2": "Running"})
        assert found["status"]["trials"][0]["stopped"] == {"step": 4, "value": 0.5, "rank": 2, "reached": 2, "most": 1}
        reports_loss(p.api, namespace, "sums-seed-2", 4, 0.4)
        found = wait(p, namespace, {"0": "Stopped", "1": "Running", "2": "Stopped"})
        assert found["status"]["best"]["name"] == "sums-seed-1" and found["status"]["best"]["equal"] == ["sums-seed-2"]
        finish(p, namespace, 1)
        found = wait(p, namespace, "Succeeded")
    assert [found["status"][key] for key in ("succeeded", "stopped")] == [1, 2]


@pytest.mark.long
def test_a_killed_operator_makes_no_trial_twice(p: Platform) -> None:
    namespace = p.namespace("killed")
    with leading(p, "killed-1") as one:
        p.api.create(lorarlsweep(namespace, "sums"))
        p.api.wait("LoRARLJob", "sums-seed-0", namespace, bool)
        one.process.kill()
    with leading(p, "killed-2") as one:
        wait_jobs(p, namespace, 0, 1)
        finish(p, namespace, 0)
        p.api.wait("LoRARLJob", "sums-seed-2", namespace, bool, seconds=SECONDS)
        one.process.kill()
    wait_running = [p.api.get("LoRARLJob", f"sums-seed-{number}", namespace) for number in (1, 2)]
    assert all(wait_running)
    p.api.delete("LoRARLJob", "sums-seed-0", namespace)
    finish(p, namespace, 1)
    with leading(p, "killed-3"):
        wait_jobs(p, namespace, 2, 3)
        for number in (2, 3):
            finish(p, namespace, number)
        found = wait(p, namespace, "Succeeded")
    assert found["status"]["succeeded"] == 4
    made = [one for one in writes(p.cluster.audit_log, OPERATOR, namespace) if one.startswith("create lorarljobs")]
    assert sorted(made) == [f"create lorarljobs sums-seed-{number}" for number in range(4)]


def test_a_suspended_sweep_continues_and_a_deleted_one_ends_its_jobs(p: Platform, replica: Operator) -> None:
    namespace = p.namespace("suspended")
    p.api.create(lorarlsweep(namespace, "sums", parallelism=1))
    wait_jobs(p, namespace, 0)
    p.api.patch(KIND, "sums", {"spec": {"suspend": True}}, namespace)
    found = wait(p, namespace, "Suspended")
    assert phases(found) == {"0": "Suspended", "1": "Waiting", "2": "Waiting", "3": "Waiting"}
    assert not p.api.list("RayJob", namespace)
    p.api.patch(KIND, "sums", {"spec": {"suspend": False, "parallelism": 2}}, namespace)
    p.wait_running(namespace, "sums-seed-0-2", seconds=SECONDS)
    wait_jobs(p, namespace, 1)
    with pytest.raises(ApiError, match="template is immutable"):
        p.api.patch(KIND, "sums", {"spec": {"template": {"spec": {"trainer": {"steps": 99}}}}}, namespace)
    p.api.delete("LoRARLJob", "sums-seed-1", namespace)
    wait(p, namespace, {"0": "Running", "1": "Deleted", "2": "Running", "3": "Waiting"})
    p.api.delete(KIND, "sums", namespace)
    for number in (0, 2):
        p.api.wait_gone("LoRARLJob", f"sums-seed-{number}", namespace, seconds=SECONDS)
    until(SECONDS, "no attempt is left", lambda: not p.api.list("RayJob", namespace))
    assert not p.api.list("LoRARLJob", namespace)


def test_a_sweep_applied_again_waits_for_jobs_that_go(p: Platform, replica: Operator) -> None:
    namespace = p.namespace("again")
    sweep = lorarlsweep(namespace, "sums", over=[{"path": "spec.trainer.seed", "values": [0, 1]}])
    p.api.create(sweep)
    wait_jobs(p, namespace, 0, 1)
    # As a clean-up of its checkpoints does.
    p.api.patch("LoRARLJob", "sums-seed-0", {"metadata": {"finalizers": ["example.com/stays"]}}, namespace)
    p.api.delete(KIND, "sums", namespace)
    p.api.wait_gone(KIND, "sums", namespace, seconds=SECONDS)
    p.api.create(sweep)

    def waits(found: Object) -> bool:
        first, *_ = found.get("status", {}).get("trials") or [{}]
        return "is being deleted" in first.get("message", "") and phases(found).get("1") == "Running"

    found = p.api.wait(KIND, "sums", namespace, waits, seconds=SECONDS)
    assert not condition(found, "Stalled")
    p.api.patch("LoRARLJob", "sums-seed-0", {"metadata": {"finalizers": None}}, namespace)
    wait(p, namespace, {"0": "Running", "1": "Running"})
    assert "NameTaken" not in events(p, namespace)


def test_the_commands_of_the_page_do_what_it_says(p: Platform, replica: Operator) -> None:
    namespace = p.namespace("page")
    left = [line.partition("  #")[0].strip() for line in PAGE.splitlines() if line.startswith("kubectl ")]

    def runs(beginning: str, words: str = "") -> str:
        """Run the one command that begins so and has these words, in this namespace."""
        (command,) = (line for line in left if line.startswith(f"kubectl {beginning}") and words in line)
        left.remove(command)
        arguments = [str(ROOT / one) if one.startswith("examples/") else one for one in shlex.split(command)[1:]]
        return p.cluster.must(*arguments, "-n", namespace)

    jobs = [f"sums-learningrate-{rate}-seed-{seed}" for rate in ("1e-05", "3e-05") for seed in (0, 1)]
    runs("apply")
    for job in jobs[:2]:
        p.wait_running(namespace, f"{job}-1", seconds=SECONDS)
    assert "sums" in runs("get lorarlsweeps")
    until(20, "an Event says so", lambda: "TrialMade" in events(p, namespace))
    assert "TrialMade" in runs("describe")
    assert runs("get lrj -l").count("sums-learningrate-1e-05") == 2
    runs("patch", '"suspend": true')
    wait(p, namespace, "Suspended")
    runs("patch", '"suspend": false')
    for job in jobs[:2]:
        p.wait_running(namespace, f"{job}-2", seconds=SECONDS)
    reports_loss(p.api, namespace, jobs[0], 50, 0.2, total=100)
    reports_loss(p.api, namespace, jobs[1], 50, 0.6, total=100)
    p.wait_running(namespace, f"{jobs[2]}-1", seconds=SECONDS)  # a score: more is better
    runs("patch", "exempt")
    runs("patch", '"remove"')
    for job, attempt in ((jobs[1], 2), (jobs[2], 1), (jobs[3], 1), (jobs[0], 3)):
        p.wait_running(namespace, f"{job}-{attempt}", seconds=SECONDS)
        p.finish(namespace, f"{job}-{attempt}", "SUCCEEDED")
    runs("wait")
    assert runs("get lrs sums", "jsonpath").split() == [
        jobs[1],
        f"s3://team/adapters/{jobs[1]}/iter_0000050/lora_adapter",
    ]
    runs("delete")
    p.api.wait_gone(KIND, "sums", namespace)
    assert not left, "each command of the page is run"


def test_the_charts_policy_lets_the_operator_create_only_jobs_of_sweeps(p: Platform) -> None:
    stolen = p.cluster.api_as(p.cluster.service_account_token(SYSTEM, ACCOUNT))
    namespace = p.namespace("policy")
    with pytest.raises(ApiError, match="LoRARLJobs that a LoRARLSweep or LoRARLSchedule owns"):
        stolen.create(lorarljob(namespace, "any"))
