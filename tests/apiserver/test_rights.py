"""The operator has exactly the permissions that it uses, according to the API server's audit log.

The first tests of this file lead jobs through all branches in which the operator sends requests. The last ones compare.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
import yaml

from lorarl_api.v1alpha1 import TARGETS, ClusterSpec
from lorarl_operator.control.cache import WATCHED
from lorarl_operator.decide.parse import job as parse_job
from lorarl_operator.decide.settings import Settings
from lorarl_operator.decide.valid_spec import checked_spec
from lorarl_operator.manifests.access import needs
from lorarl_operator.manifests.cleanup import cleanup_job
from support.cluster.audit import Right, account, granted, refused, used
from support.cluster.client import Api, ApiError, Object
from support.cluster.crds import CRDS
from support.cluster.kwok import CANNOT_BE_PULLED, DEVICE_CLASS, HELD, add_devices, mend_node, silence_node
from support.cluster.lorarljobs import condition, lorarljob, phase, report, template
from support.cluster.operator import RIGHTS, SYSTEM, Operator, operator, prepare, wait_leader
from support.cluster.platform import Platform, platform
from support.cluster.processes import find_share, until
from support.cluster.rayjobs import rayjob
from support.cluster.schedules import create_due, job_of, lorarlschedule
from support.cluster.sweeps import lorarlsweep
from support.cluster.tools import tools_or_skip
from support.helm import rendered

ACCOUNT = "operator-lorarl"
"""The name that the chart gives it: the chart's policy for the account applies to these tests."""
OPERATOR = account(SYSTEM, ACCOUNT)
# A plugin that OpenShift enables: who creates what blocks its owner's deletion must be allowed to finalize that.
GUARDED_OWNERS = "OwnerReferencesPermissionEnforcement"
FINALIZE = Right("lorarl.io", "lorarljobs/finalizers", "update")
FINALIZE_SWEEP = Right("lorarl.io", "lorarlsweeps/finalizers", "update")
GET_JOB = Right("lorarl.io", "lorarljobs", "get")


@pytest.fixture(scope="module")
def p(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    folder = tmp_path_factory.mktemp("rights")
    with tools_or_skip():
        # The operator reads Workloads where they are served. Kueue itself does not run here.
        crds = [*CRDS, find_share("kueue") / "config/components/crd/bases/kueue.x-k8s.io_workloads.yaml"]
        with platform(folder, crds=crds, audit=True, admission=[GUARDED_OWNERS]) as running:
            for one in (one for one in rendered() if one["kind"].startswith("ValidatingAdmissionPolicy")):
                running.cluster.must("apply", "-f", "-", stdin=json.dumps(one))
            yield running


@pytest.fixture(scope="module")
def replica(p: Platform) -> Iterator[Operator]:
    with operator(
        p.cluster, prepare(p.cluster, account=ACCOUNT), "rights", "--cleanup-seconds=20", "--elastic-wait-seconds=2"
    ) as one:
        yield wait_leader(one)


def test_a_job_trains_is_suspended_twice_and_is_deleted_by_its_ttl(p: Platform, replica: Operator) -> None:
    namespace = p.namespace()
    add_devices(p.cluster, "node-0", 1)
    claims = {"gpusPerNode": 1, "gpuClaim": {"deviceClass": DEVICE_CLASS}}
    p.api.create(lorarljob(namespace, "whole", ttlSecondsAfterFinished=1, cluster=claims))
    for number in (1, 2):
        p.wait_running(namespace, f"whole-{number}", seconds=60)
        p.api.patch("LoRARLJob", "whole", {"spec": {"suspend": True}}, namespace)
        p.api.wait("LoRARLJob", "whole", namespace, lambda job: phase(job) == "Suspended", seconds=30)
        (template,) = p.api.list("ResourceClaimTemplate", namespace)
        owned = [
            (kind, "lorarl-whole") for kind in ("ServiceAccount", "Role", "RoleBinding", "ConfigMap", "NetworkPolicy")
        ]
        # An older operator might have created them like this.
        for kind, name in (*owned, ("ResourceClaimTemplate", template["metadata"]["name"])):
            p.api.patch(kind, name, {"metadata": {"labels": {"lorarl.io/job-uid": None}}}, namespace)
        p.api.patch("LoRARLJob", "whole", {"spec": {"suspend": False}}, namespace)
    p.wait_running(namespace, "whole-3", seconds=60)
    p.finish(namespace, "whole-3", "SUCCEEDED")
    p.api.wait_gone("LoRARLJob", "whole", namespace, seconds=30)


def test_an_elastic_job_starts_on_fewer_nodes_than_it_asks_for(p: Platform, replica: Operator) -> None:
    namespace = p.namespace()
    p.api.create(lorarljob(namespace, "elastic", cluster={"nodes": 3, "minNodes": 1, "gpusPerNode": 8}))
    p.wait_running(namespace, "elastic-1", seconds=60)
    p.api.delete("LoRARLJob", "elastic", namespace)


def test_names_that_are_taken_and_checkpoints_that_are_removed(p: Platform, replica: Operator) -> None:
    namespace = p.namespace()
    cleanup = {"name": "lorarl-removed-cleanup", "namespace": namespace}
    pod = {"restartPolicy": "Never", "containers": [{"name": "any", "image": "test.invalid/held:1"}]}
    p.api.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": cleanup, "spec": {"template": {"spec": pod}}})
    p.api.create(rayjob(namespace, "removed-1", image="test.invalid/held:1"))
    account = {"serviceAccountAnnotations": {"example.invalid/role": "store"}}
    p.api.create(
        lorarljob(
            namespace, "removed", cluster=account, checkpoint={"uri": "s3://team/adapters", "deletionPolicy": "Delete"}
        )
    )
    p.api.wait(
        "LoRARLJob", "removed", namespace, lambda job: "removed-1" in condition(job, "Running").get("message", "")
    )
    p.api.delete("RayJob", "removed-1", namespace)
    p.wait_running(namespace, "removed-1", seconds=60)
    p.api.delete("LoRARLJob", "removed", namespace)
    until(
        20,
        "the clean-up finds its name taken",
        lambda: Right("batch", "jobs", "get") in used(p.cluster.audit_log, OPERATOR),
    )
    p.api.delete("Job", "lorarl-removed-cleanup", namespace)
    p.api.wait_gone("LoRARLJob", "removed", namespace, seconds=60)


def test_a_clean_up_that_takes_too_long(p: Platform, replica: Operator) -> None:
    namespace = p.namespace()
    kept = {"uri": "s3://team/adapters", "deletionPolicy": "Delete"}
    p.api.create(lorarljob(namespace, "hangs", checkpoint=kept, cluster={"image": HELD}))
    p.api.wait("RayJob", "hangs-1", namespace, bool)
    p.api.delete("LoRARLJob", "hangs", namespace)
    p.api.wait("Job", "lorarl-hangs-cleanup", namespace, bool)
    p.api.wait_gone("LoRARLJob", "hangs", namespace, seconds=40)
    p.api.wait_gone("Job", "lorarl-hangs-cleanup", namespace, seconds=10)


def test_jobs_that_are_stuck_on_their_nodes_and_in_a_queue(p: Platform, replica: Operator) -> None:
    namespace = p.namespace()
    p.api.create(template(namespace, "broken", cluster={"image": CANNOT_BE_PULLED}))
    p.api.create(template(None, "queue", labels={"kueue.x-k8s.io/queue-name": "team"}))
    p.api.create(lorarljob(namespace, "stuck", templateRef={"name": "broken"}))
    of_cluster = {"kind": "ClusterLoRARLJobTemplate", "name": "queue"}
    p.api.create(lorarljob(namespace, "queued", templateRef=of_cluster))
    p.api.wait("RayJob", "queued-1", namespace, bool)
    p.api.patch("RayJob", "queued-1", {"spec": {"suspend": True}}, namespace)  # A queue's webhook would do this.
    p.api.wait(
        "LoRARLJob", "stuck", namespace, lambda job: condition(job, "Running").get("reason") == "ImagePull", seconds=30
    )
    p.api.wait(
        "LoRARLJob", "queued", namespace, lambda job: condition(job, "Running").get("reason") == "Queued", seconds=30
    )
    asked = {Right("", "events", "list"), Right("kueue.x-k8s.io", "workloads", "list")}
    until(30, "the operator asks why they are stuck", lambda: asked <= used(p.cluster.audit_log, OPERATOR))


def test_a_worker_on_a_node_that_does_not_respond(p: Platform, replica: Operator) -> None:
    namespace, node = p.namespace(), "node-1"
    on = {key: {"kubernetes.io/hostname": name} for key, name in (("head", "node-0"), ("worker", node))}
    cluster = {"nodeSelector": on["worker"], "head": {"nodeSelector": on["head"]}, "terminationGracePeriodSeconds": 1}
    p.api.create(lorarljob(namespace, "silent", cluster=cluster))
    p.wait_running(namespace, "silent-1", seconds=60)
    p.api.wait("LoRARLJob", "silent", namespace, lambda job: phase(job) == "Running", seconds=30)
    (pod,) = p.pods(namespace, "silent-1", "worker")
    name = pod["metadata"]["name"]
    report(p.api, namespace, "silent", step=1, totalSteps=10, workers={"attempt": 1, "pods": [name]})
    silence_node(p.cluster, node)
    try:
        p.api.wait_gone("Pod", name, namespace, seconds=30)
    finally:
        mend_node(p.cluster, node)
    assert Right("", "pods", "delete") in used(p.cluster.audit_log, OPERATOR)
    assert "KubeRay 1.6." in (p.cluster.folder / "rights.log").read_text(), "the head's pod tells its version"
    p.api.delete("LoRARLJob", "silent", namespace)


def test_a_job_whose_evictions_wait_for_a_checkpoint(p: Platform, replica: Operator) -> None:
    namespace, name = p.namespace(), "lorarl-guarded"
    about = {"name": name, "namespace": namespace}
    foreign = {"minAvailable": 0, "selector": {"matchLabels": {"any": "other"}}}
    p.api.create({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": about, "spec": foreign})
    p.api.create(lorarljob(namespace, "guarded", cluster={"disruption": "AfterCheckpoint"}))
    p.api.wait(
        "LoRARLJob",
        "guarded",
        namespace,
        lambda job: f"{name} is refused" in condition(job, "Running").get("message", ""),
        seconds=60,
    )
    p.api.delete("PodDisruptionBudget", name, namespace)
    ours = p.api.wait("PodDisruptionBudget", name, namespace, bool, seconds=60)
    assert ours["metadata"]["ownerReferences"][0]["name"] == "guarded"
    p.api.patch("LoRARLJob", "guarded", {"spec": {"suspend": True}}, namespace)
    p.api.wait_gone("PodDisruptionBudget", name, namespace, seconds=30)


def test_a_sweep_makes_its_jobs_and_is_deleted_by_its_ttl(p: Platform, replica: Operator) -> None:
    namespace = p.namespace()
    over = [{"path": "spec.trainer.seed", "values": [1]}]
    p.api.create(lorarlsweep(namespace, "sums", over=over, ttlSecondsAfterFinished=1))
    p.wait_running(namespace, "sums-seed-1-1", seconds=60)
    p.finish(namespace, "sums-seed-1-1", "SUCCEEDED")
    p.api.wait_gone("LoRARLSweep", "sums", namespace, seconds=30)
    p.api.wait_gone("LoRARLJob", "sums-seed-1", namespace, seconds=30)


def test_a_schedule_makes_its_jobs(p: Platform, replica: Operator) -> None:
    namespace = p.namespace()
    create_due(p.api, lorarlschedule(namespace, successfulJobsHistoryLimit=0))
    p.wait_running(namespace, f"{job_of(9)}-1", seconds=60)
    p.finish(namespace, f"{job_of(9)}-1", "SUCCEEDED")
    p.api.wait_gone("LoRARLJob", job_of(9), namespace, seconds=30)


def test_a_job_that_others_write_while_the_operator_decides(p: Platform, replica: Operator) -> None:
    namespace = p.namespace()
    p.api.create(lorarljob(namespace, "busy", suspend=True))
    step = 0

    def is_read_again() -> bool:
        nonlocal step
        p.api.patch("LoRARLJob", "busy", {"spec": {"suspend": step % 20 < 10}}, namespace)
        report(p.api, namespace, "busy", step=(step := step + 1))
        return GET_JOB in used(p.cluster.audit_log, OPERATOR)

    until(60, "a status met a job that had changed", is_read_again)


def test_each_permission_is_used_and_none_is_missing(p: Platform, replica: Operator) -> None:
    """This must run after the others of this file."""
    replica.process.stop()
    # The log has a watch only after its end.
    until(
        20,
        "the watches are in the log",
        lambda: sum(right.verb == "watch" for right in used(p.cluster.audit_log, OPERATOR)) == len(WATCHED),
    )
    rights = yaml.safe_load(RIGHTS.read_text())
    # Those of targets are optional, and apiserver/test_publishing.py and its neighbours have them.
    rules = [rule for part, rules in rights.items() if part not in TARGETS for rule in rules]
    needed = used(p.cluster.audit_log, OPERATOR) | granted(job_role(p)["rules"]) | {FINALIZE, FINALIZE_SWEEP}
    assert granted(rules) == needed
    assert refused(p.cluster.audit_log, OPERATOR) == []


def test_guarded_owners_need_the_permission_to_finalize_them(p: Platform) -> None:
    """No log shows the use of this permission: an admission plugin checks it."""
    namespace = p.namespace()
    owner = p.api.create(lorarljob(namespace, "owner", suspend=True))
    config_map = next(
        one for one in needs(parse_job(owner), ClusterSpec(), Settings("any")) if one["kind"] == "ConfigMap"
    )
    config_map["metadata"]["name"] = "made-by-the-test"
    role = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create", "patch"]}]
    grant(p, namespace, role)
    narrow = p.cluster.api_as(p.cluster.service_account_token(namespace, "default"))
    until(20, "the owner is guarded", lambda: "cannot set blockOwnerDeletion" in refusal(narrow, config_map))
    grant(
        p,
        namespace,
        [*role, {"apiGroups": [FINALIZE.group], "resources": [FINALIZE.resource], "verbs": [FINALIZE.verb]}],
    )
    until(20, "the permission is in force", lambda: not refusal(narrow, config_map))


def test_the_charts_policy_guards_what_no_job_owns(p: Platform) -> None:
    """RBAC alone would allow all of this. It runs after the others, which expect that nothing is refused."""
    operator = p.cluster.api_as(p.cluster.service_account_token(SYSTEM, ACCOUNT))
    namespace = p.namespace()
    allow_everything(p, namespace)
    job = p.api.create(lorarljob(namespace, "owner", suspend=True))
    (config,) = (one for one in needs(parse_job(job), ClusterSpec(), Settings("any")) if one["kind"] == "ConfigMap")
    foreign = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "aws-auth", "namespace": namespace}}
    p.api.create(foreign)
    stolen = {**foreign, "metadata": foreign["metadata"] | {"ownerReferences": config["metadata"]["ownerReferences"]}}
    ours, owned_by_a_job = "may write only objects that a LoRARLJob owns", config["metadata"]
    until(20, "it may not take over an object", lambda: ours in refusal(operator, stolen))
    assert ours in refusal(operator, {**foreign, "data": {"any": "value"}})
    system = {**config, "metadata": owned_by_a_job | {"namespace": "kube-system"}}
    assert "may not write to this namespace" in refusal(operator, system)
    assert ours in refusal(operator, {**foreign, "kind": "ServiceAccount"})
    open_to_all = {"podSelector": {}, "ingress": [{}]}
    assert ours in refusal(
        operator, {**foreign, "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "spec": open_to_all}
    )
    with pytest.raises(ApiError, match=ours):
        operator.create(rayjob(namespace, "any", image="test.invalid/held:1"))
    config["metadata"]["name"] = "made-by-the-test"
    assert refusal(operator, config) == ""


def test_the_charts_policy_knows_a_clean_up_by_what_it_runs(p: Platform) -> None:
    """It has no owner, and a name proves nothing: its pod could have any Secret, or the token of any ServiceAccount."""
    operator = p.cluster.api_as(p.cluster.service_account_token(SYSTEM, ACCOUNT))
    namespace = p.namespace()
    allow_everything(p, namespace)
    job = parse_job(p.api.create(lorarljob(namespace, "owner", suspend=True)))
    made = cleanup_job(job, checked_spec(job), Settings("test.invalid/held:1"), datetime.now(UTC), 60)
    pod = made["spec"]["template"]["spec"]
    only, container = "may create only Jobs that run `lorarl purge`", pod["containers"][0]

    def told(**spec: object) -> str:
        template = made["spec"]["template"] | {"spec": pod | spec}
        return refusal(operator, made | {"spec": made["spec"] | {"template": template}})

    shell = container | {"command": ["sh", "-c", "cat /var/run/secrets/*"]}
    until(20, "it may run no shell", lambda: only in told(containers=[shell]))
    assert only in told(containers=[container, shell | {"name": "second"}])
    assert only in told(initContainers=[shell | {"name": "first"}])
    assert only in told(automountServiceAccountToken=True, serviceAccountName="admin")
    assert told() == ""


def test_the_charts_policy_may_keep_the_operator_to_labelled_namespaces(p: Platform) -> None:
    for one in rendered({"admissionPolicy.namespaceLabels": {"tenants": "yes"}}):
        if one["kind"] == "ValidatingAdmissionPolicy":
            p.cluster.must("apply", "-f", "-", stdin=json.dumps(one))
    operator = p.cluster.api_as(p.cluster.service_account_token(SYSTEM, ACCOUNT))
    namespace = p.namespace()
    allow_everything(p, namespace)
    job = p.api.create(lorarljob(namespace, "owner", suspend=True))
    (config,) = (one for one in needs(parse_job(job), ClusterSpec(), Settings("any")) if one["kind"] == "ConfigMap")
    elsewhere = "may write only to namespaces with the label tenants=yes"
    until(20, "the policy is in force", lambda: elsewhere in refusal(operator, config))
    p.api.patch("Namespace", namespace, {"metadata": {"labels": {"tenants": "yes"}}})
    until(20, "the label counts", lambda: refusal(operator, config) == "")


def test_a_jobs_code_cannot_forge_the_operators_part_of_the_status(p: Platform) -> None:
    """A job's pods may write its status. Without the policy they could reset what counts against backoffLimit."""
    namespace = p.namespace()
    p.api.create(lorarljob(namespace, "forger", suspend=True))
    report(p.api, namespace, "forger", step=1)
    p.api.patch("LoRARLJob", "forger", {"status": {"attempts": 3}}, namespace, "status")
    grant(p, namespace, [{"apiGroups": ["lorarl.io"], "resources": ["lorarljobs/status"], "verbs": ["get", "patch"]}])
    trainer = p.cluster.api_as(p.cluster.service_account_token(namespace, "default"))

    def forged(**status: object) -> str:
        try:
            trainer.patch("LoRARLJob", "forger", {"status": status}, namespace, "status")
        except ApiError as error:
            return str(error)
        return ""

    until(
        20, "the policy is in force", lambda: "Only the operator of lorarl writes status.attempts" in forged(attempts=0)
    )
    assert "status.phase" in forged(phase="Succeeded")
    assert forged(step=2, totalSteps=10) == ""
    job = p.api.get("LoRARLJob", "forger", namespace)
    assert job is not None
    assert job["status"]["step"] == 2


def test_a_restore_from_another_namespace_may_write_a_whole_status(p: Platform) -> None:
    """Velero's `restoreStatus`: without the status, a finished job would train again."""
    namespace, backups = p.namespace(), p.namespace()
    p.api.create(lorarljob(namespace, "restored", suspend=True))
    rights = ("--verb=get,patch", "--resource=lorarljobs.lorarl.io/status", "-n", namespace)
    p.cluster.must("create", "role", "restorer", *rights)
    p.cluster.must(
        "create", "rolebinding", "restorer", "--role=restorer", f"--serviceaccount={backups}:default", "-n", namespace
    )
    velero = p.cluster.api_as(p.cluster.service_account_token(backups, "default"))
    status = {"phase": "Succeeded", "attempts": 1, "completionTime": "2026-03-01T12:00:00Z"}
    velero.patch("LoRARLJob", "restored", {"status": status}, namespace, "status")
    job = p.api.get("LoRARLJob", "restored", namespace)
    assert job is not None
    assert job["status"]["phase"] == "Succeeded"


def allow_everything(p: Platform, namespace: str) -> None:
    """Give the operator all rights. Without them the plugin GUARDED_OWNERS would refuse before the policy does."""
    everything = ("--clusterrole=cluster-admin", f"--serviceaccount={SYSTEM}:{ACCOUNT}", "-n", namespace)
    p.cluster.must("create", "rolebinding", "everything", *everything)


def job_role(p: Platform) -> Object:
    """The Role that the operator has created for the trainer of a job."""
    return next(one for one in p.api.list("Role") if one["metadata"].get("labels", {}).get("lorarl.io/job"))


def grant(p: Platform, namespace: str, rules: list[Object]) -> None:
    """Give the namespace's default ServiceAccount exactly these permissions."""
    group = "rbac.authorization.k8s.io"
    head = {"apiVersion": f"{group}/v1", "metadata": {"name": "narrow", "namespace": namespace}}
    p.api.apply({**head, "kind": "Role", "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": namespace}
    p.api.apply(
        {
            **head,
            "kind": "RoleBinding",
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "narrow"},
            "subjects": [subject],
        }
    )


def refusal(api: Api, manifest: Object) -> str:
    """Why an object could not be applied; empty if it was. Permissions take effect after a moment."""
    try:
        api.apply(manifest)
    except ApiError as error:
        return str(error)
    return ""
