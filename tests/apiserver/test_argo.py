"""examples/pipelines/argo.yaml with Argo's own definitions and executor, on jobs whose status our operator writes."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from lorarl_api.v1alpha1 import LoRARLJobStatus
from support.argo import ACCOUNT, EXAMPLE, NOT_YET, RIGHTS, Step, alone, substituted
from support.cluster.audit import Right, account, granted, refused, used
from support.cluster.client import Object
from support.cluster.control_plane import Cluster
from support.cluster.crds import install_crds
from support.cluster.lorarljobs import condition, lorarljob, phase, report
from support.cluster.operator import Operator
from support.cluster.platform import Platform
from support.cluster.processes import find, find_share
from support.cluster.tools import tools_or_skip

pytestmark = pytest.mark.long

PAGE = (EXAMPLE.parents[2] / "docs/pipelines.md").read_text()
PHASES = {one for part in get_args(LoRARLJobStatus.model_fields["phase"].annotation) for one in get_args(part)}
ADAPTER = {"uri": "s3://team/adapters/x/iter_0000004/lora_adapter", "sha256": "ab" * 32, "step": 4, "version": 5}
FOUND = {"adapter": ADAPTER["uri"], "sha256": ADAPTER["sha256"], "score": "0.8125"}
LOOKS = Right("", "namespaces", "get")
"""`kubectl apply` looks whether the namespace of a new object is there, and does without if it may not."""
UID = "6c1a4a5e-0d1c-4f0e-9d8e-0f4b7a2b9f11"


def definitions(*names: str, kind: str = "full") -> list[Path]:
    """Argo's definitions, whole or without the schema of their specs."""
    with tools_or_skip():
        find("argoexec")
        return [find_share("argoexec") / f"crds/{kind}/argoproj.io_{name}.yaml" for name in names]


class Argo:
    """A namespace with the account of the example, in which steps run."""

    def __init__(self, p: Platform, folder: Path) -> None:
        self.p, self.folder, self.namespace = p, folder, p.namespace("argo")
        p.cluster.must("apply", "-n", self.namespace, "-f", str(RIGHTS))
        token = p.cluster.service_account_token(self.namespace, ACCOUNT)
        config = json.loads(p.cluster.write_kubeconfig(f"argo-{self.namespace}", token).read_text())
        config["contexts"][0]["context"]["namespace"] = self.namespace
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(config))
        self.steps: list[Step] = []

    def start(self, template: dict[str, Any], workflow: str, uid: str = UID) -> Step:
        """Start the pod of a step."""
        self.steps.append(Step(self.folder, self.kubeconfig, template, workflow, uid))
        return self.steps[-1]

    def job(self, workflow: str, wanted: str) -> Object:
        """The workflow's job, as soon as it has a phase."""
        return self.p.api.wait("LoRARLJob", workflow, self.namespace, lambda job: phase(job) == wanted, seconds=30)

    def outputs(self, step: Step) -> dict[str, str]:
        """What the step reported to Argo's controller."""
        found = self.p.api.get("WorkflowTaskResult", step.node, self.namespace)
        assert found is not None
        return {one["name"]: one.get("value", "") for one in found["outputs"]["parameters"]}


def made(workflow: str, **spec: Any) -> dict[str, Any]:
    """The template `job` with a small job of these tests in place of the example's."""
    template = substituted("job", workflow, steps="4")
    job = yaml.safe_load(template["resource"]["manifest"])
    job["spec"] = lorarljob("", "", trainer={"steps": 4}, **spec)["spec"]
    template["resource"]["manifest"] = yaml.safe_dump(job)
    return template


@pytest.fixture(scope="module")
def results(kuberay_platform: Platform) -> Iterator[None]:
    """Argo's definitions that pods use."""
    install_crds(kuberay_platform.cluster, *definitions("workflowtaskresults"))
    yield
    kuberay_platform.api.delete("CustomResourceDefinition", "workflowtaskresults.argoproj.io")


@pytest.fixture
def argo(kuberay_platform: Platform, replica: Operator, results: None, tmp_path: Path) -> Iterator[Argo]:
    one = Argo(kuberay_platform, tmp_path)
    with alone():
        yield one
        for step in one.steps:
            step.kill()


def test_the_template_is_argos(cluster: Cluster) -> None:
    install_crds(cluster, *definitions("workflowtemplates"))
    cluster.must("create", "--validate=strict", "-f", str(EXAMPLE))
    wrong = EXAMPLE.read_text().replace("successCondition", "successConditions")
    done = cluster.kubectl("create", "--validate=strict", "-f", "-", stdin=wrong)
    assert done.returncode and 'unknown field "spec.templates[1].resource.successConditions"' in done.stderr
    cluster.api.delete("CustomResourceDefinition", "workflowtemplates.argoproj.io")


def test_a_job_that_succeeds_gives_the_steps_outputs_with_the_least_rights(argo: Argo) -> None:
    step = argo.start(made("whole"), "whole")
    argo.job("whole", "Running")
    metrics = {"evalScore": float(FOUND["score"]), "reward": 0.5}
    report(argo.p.api, argo.namespace, "whole", step=4, totalSteps=4, progress="4/4", adapter=ADAPTER, metrics=metrics)
    argo.p.finish(argo.namespace, "whole-1", "SUCCEEDED")
    assert step.ends() == 0, step.said
    assert argo.outputs(step) == FOUND
    (role,) = (one for one in yaml.safe_load_all(RIGHTS.read_text()) if one["kind"] == "Role")
    log, user = argo.p.cluster.audit_log, account(argo.namespace, ACCOUNT)
    assert used(log, user) - {LOOKS} == granted(role["rules"])
    assert {line.partition(": ")[0] for line in refused(log, user)} <= {f"get /api/v1/namespaces/{argo.namespace}"}
    again = argo.start(made("whole"), "whole")
    assert again.ends() == 0 and argo.outputs(again) == FOUND, again.said


@pytest.mark.parametrize(
    ("verb", "resource"),
    [("patch", "lorarljobs"), ("delete", "lorarljobs"), ("list", "lorarljobs"), ("get", "secrets"), ("create", "pods")],
)
def test_the_account_may_do_nothing_else(argo: Argo, verb: str, resource: str) -> None:
    asked = ["auth", "can-i", verb, resource, f"--as={account(argo.namespace, ACCOUNT)}", "-n", argo.namespace]
    assert argo.p.cluster.kubectl(*asked).stdout == "no\n"
    asked[2:4] = "create", "lorarljobs.lorarl.io"
    assert argo.p.cluster.kubectl(*asked).stdout == "yes\n"


def test_a_job_that_fails_fails_the_step_and_says_why(argo: Argo) -> None:
    step = argo.start(made("bad", backoffLimit=0), "bad")
    argo.job("bad", "Running")
    argo.p.finish(argo.namespace, "bad-1", "FAILED", "the data ran out")
    assert step.ends() == 64
    (message,) = re.findall("`(failure condition .*)`", PAGE)
    assert message in step.said
    why = argo.start(substituted("why", "bad"), "bad")
    assert why.ends() == 0, why.said
    failed = condition(argo.job("bad", "Failed"), "Failed")
    assert argo.outputs(why) == {"reason": failed["reason"], "message": failed["message"]}
    assert failed["message"].startswith("Attempt 1 failed")


def test_a_job_that_is_deleted_fails_the_step(argo: Argo) -> None:
    step = argo.start(made("gone"), "gone")
    argo.job("gone", "Running")
    argo.p.api.delete("LoRARLJob", "gone", argo.namespace)
    assert step.ends() == 64
    assert "The resource has been deleted while its status was still being checked" in step.said


def test_a_lost_pods_successor_waits_for_the_same_job(argo: Argo) -> None:
    first = argo.start(made("kept"), "kept")
    uid = argo.job("kept", "Running")["metadata"]["uid"]
    first.kill()
    second = argo.start(made("kept"), "kept")
    second.wait_log(NOT_YET)
    report(argo.p.api, argo.namespace, "kept", step=4, totalSteps=4, progress="4/4", adapter=ADAPTER)
    argo.p.finish(argo.namespace, "kept-1", "SUCCEEDED")
    assert second.ends() == 0, second.said
    assert argo.outputs(second) == {**FOUND, "score": ""}
    assert argo.job("kept", "Succeeded")["metadata"]["uid"] == uid


def runs_again(job: Object, attempt: str) -> bool:
    """Whether a later attempt runs."""
    return phase(job) == "Running" and bool(job["status"]["rayJobName"] != attempt)


def test_each_phase_that_the_operator_writes_is_judged_as_the_page_says(argo: Argo, cluster: Cluster) -> None:
    """The statuses of real jobs, copied to jobs without an operator, where they stay."""
    api, namespace = argo.p.api, argo.namespace
    seen: dict[str, Object] = {}
    done = threading.Event()

    def watch() -> None:
        for _, job in api.watch("LoRARLJob", namespace, seconds=300):
            seen.setdefault(phase(job) or "none", job.get("status", {}))
            if done.is_set() or seen.keys() >= PHASES:
                return

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    api.create(lorarljob(namespace, "waits", cluster={"gpusPerNode": 64}))
    argo.job("waits", "Pending")
    api.create(lorarljob(namespace, "lives", backoffLimit=1))
    argo.job("lives", "Running")
    for suspend, wanted in ((True, "Suspended"), (False, "Running")):
        argo.p.cluster.must(
            *("patch", "lrj", "lives", "-n", namespace, "--type=merge"),
            *("-p", json.dumps({"spec": {"suspend": suspend}})),
        )
        argo.job("lives", wanted)
    attempt = argo.job("lives", "Running")["status"]["rayJobName"]
    argo.p.finish(namespace, attempt, "FAILED", "once")
    next_one = api.wait("LoRARLJob", "lives", namespace, lambda job: runs_again(job, attempt), seconds=60)
    report(api, namespace, "lives", step=10, totalSteps=10, progress="10/10", adapter=ADAPTER)
    argo.p.finish(namespace, next_one["status"]["rayJobName"], "SUCCEEDED")
    argo.job("lives", "Succeeded")
    api.create(lorarljob(namespace, "bad", backoffLimit=0))
    argo.job("bad", "Running")
    argo.p.finish(namespace, "bad-1", "FAILED", "always")
    argo.job("bad", "Failed")
    watching.join(60)
    done.set()
    assert PHASES - seen.keys() == set()

    resource = substituted("job", "x", steps="4")["resource"]
    for name, status in seen.items():
        job = lorarljob("default", f"was-{name.lower()}")
        cluster.api.create(job)
        cluster.api.patch("LoRARLJob", job["metadata"]["name"], {"status": status}, "default", "status")
        manifest = yaml.safe_dump({key: value for key, value in job.items() if key != "spec"})
        template = {"name": name.lower(), "resource": {**resource, "action": "get", "manifest": manifest}}
        step = Step(argo.folder, cluster.kubeconfig, template, "phases", UID)
        argo.steps.append(step)
        if name == "Succeeded":
            assert step.ends() == 0, step.said
        elif name == "Failed":
            assert step.ends() == 64 and "failure condition" in step.said
        else:
            step.wait_log(NOT_YET)
            assert step.process.poll() is None
            step.kill()
        cluster.api.delete("LoRARLJob", job["metadata"]["name"], "default")


@pytest.mark.long
def test_a_deleted_workflow_deletes_its_job(argo: Argo) -> None:
    """It takes a garbage collector that has noticed the new kind."""
    install_crds(argo.p.cluster, *definitions("workflows", kind="minimal"))
    about = {"name": "owner", "namespace": argo.namespace}
    head = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": about}
    workflow = argo.p.api.create({**head, "spec": {}})
    uid = workflow["metadata"]["uid"]
    owner = yaml.safe_load(substituted("job", "owner", uid, steps="4")["resource"]["manifest"])["metadata"]
    template = made("owner")
    manifest = {**yaml.safe_load(template["resource"]["manifest"]), "metadata": owner}
    template["resource"]["manifest"] = yaml.safe_dump(manifest)
    step = argo.start(template, "owner", uid)
    argo.job("owner", "Running")
    argo.p.api.patch("Workflow", "owner", {"status": {"phase": "Failed"}}, argo.namespace)
    argo.p.api.delete("Workflow", "owner", argo.namespace)
    argo.p.api.wait_gone("LoRARLJob", "owner", argo.namespace, seconds=120)
    assert step.ends() == 64 and "The resource has been deleted" in step.said
    argo.p.api.delete("CustomResourceDefinition", "workflows.argoproj.io")
