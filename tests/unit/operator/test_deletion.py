"""The deletion of a LoRARLJob, with its checkpoints if deletionPolicy is Delete."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lorarl_api.load import load_job
from lorarl_operator.decide import parse
from lorarl_operator.decide.decide import decide
from lorarl_operator.decide.decision import Create, Delete, RemoveFinalizer
from lorarl_operator.decide.models import FINALIZER, LABEL_JOB_UID, Refusal
from lorarl_operator.decide.names import access_name
from lorarl_operator.manifests.pods import pod_security_context, security_context
from unit.operator.decisions import REFUSED_BY_ADMISSION
from unit.operator.observed_world import SETTINGS, START, ago, condition, observed, raw_job, raw_pod, raw_ray_job

DELETE = {"checkpoint": {"uri": "s3://team/adapters", "credentialsSecret": "s3-keys", "deletionPolicy": "Delete"}}
WITH_ACCOUNT = DELETE | {
    "cluster": {"serviceAccountAnnotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/t"}}
}


def deleted(spec=DELETE, status=None, **metadata):
    about = {"deletionTimestamp": ago(5), "finalizers": [FINALIZER]} | metadata
    return raw_job(spec, {"phase": "Running", "rayJobName": "demo-1"} if status is None else status, **about)


def cleanup(*conditions, owner="job-uid", suspend=False):
    about = {"name": "lorarl-demo-cleanup", "uid": "cleanup-uid", "labels": {LABEL_JOB_UID: owner}}
    return parse.cleanup_job(
        {"metadata": about, "spec": {"suspend": suspend}, "status": {"conditions": list(conditions)}}
    )


def container_of(manifest):
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    return container


def env_of(manifest):
    return {one["name"]: one["value"] for one in container_of(manifest)["env"]}


def decided(job, *ray_jobs, now=START, **rest):
    return decide(observed(job, *ray_jobs, **rest), now, SETTINGS)


def test_without_the_finalizer_the_garbage_collector_does_everything():
    decision = decided(deleted(finalizers=[]), raw_ray_job())
    assert (decision.actions, decision.status) == ((), None)


def test_first_the_rayjob_is_deleted_then_its_pods():
    assert decided(deleted(), raw_ray_job()).actions == (Delete("RayJob", "demo-1", "ray-1"),)
    waiting = decided(deleted(), pods=[raw_pod(deletionTimestamp=ago(-60), deletionGracePeriodSeconds=120)])
    assert (waiting.actions, waiting.recheck_seconds) == ((), 70)


def test_of_a_job_that_succeeded_the_checkpoints_are_removed_at_once():
    """Nothing trains any more. The garbage collector deletes the RayJob and its head with the LoRARLJob."""
    done = deleted(status={"phase": "Succeeded", "rayJobName": "demo-1"})
    (action,) = decided(done, raw_ray_job(), pods=[raw_pod("head")]).actions
    assert isinstance(action, Create)
    assert action.manifest["kind"] == "Job"


def test_then_the_checkpoints():
    (action,) = decided(deleted()).actions
    assert isinstance(action, Create)
    manifest = action.manifest
    assert manifest["metadata"]["name"] == "lorarl-demo-cleanup"
    assert "ownerReferences" not in manifest["metadata"]  # A foreground deletion would delete it early.
    pod = manifest["spec"]["template"]["spec"]
    assert {"name": "secret-0", "secret": {"secretName": "s3-keys"}} in pod["volumes"]
    assert pod["enableServiceLinks"] is False
    assert pod["containers"][0]["command"] == ["lorarl", "purge", "/etc/lorarl/job/job.yaml"]
    # The command reads the annotation as a file.
    (item,) = pod["volumes"][0]["downwardAPI"]["items"]
    assert item == {"path": "job.yaml", "fieldRef": {"fieldPath": "metadata.annotations['lorarl.io/manifest']"}}
    text = manifest["spec"]["template"]["metadata"]["annotations"]["lorarl.io/manifest"]
    assert load_job(text).spec.checkpoint.uri == "s3://team/adapters"


def test_the_clean_up_ends_when_the_operator_gives_up():
    """Its time counts from the deletion, even if the Job starts late: afterwards a new job may have the name."""
    (action,) = decided(deleted(deletionTimestamp=ago(800))).actions
    assert action.manifest["spec"]["activeDeadlineSeconds"] == 100
    assert env_of(action.manifest)["LORARL_PURGE_UNTIL"] == f"{START + timedelta(seconds=100):%FT%TZ}"


def test_the_clean_up_has_the_heads_access_to_the_store():
    head = {
        "metadata": {
            "labels": {"azure.workload.identity/use": "true", LABEL_JOB_UID: "another"},
            "annotations": {"a": "b"},
        },
        "spec": {
            "volumes": [{"name": "ca", "configMap": {"name": "ca"}}],
            "restartPolicy": "Always",
            "enableServiceLinks": True,
            "securityContext": {"runAsUser": 1234},
            "containers": [
                {
                    "name": "ray-head",
                    "securityContext": {"privileged": True},
                    "env": [{"name": "SSL_CERT_FILE", "value": "/ca/ca.pem"}],
                    "volumeMounts": [{"name": "ca", "mountPath": "/ca"}],
                    "resources": {"requests": {"cpu": "64"}},
                },
                {"name": "sidecar", "image": "it would never end"},
            ],
        },
    }
    (action,) = decided(deleted(DELETE | {"cluster": {"podTemplateOverrides": {"head": head}}})).actions
    template = action.manifest["spec"]["template"]
    container = container_of(action.manifest)
    assert template["metadata"]["labels"]["azure.workload.identity/use"] == "true"
    assert template["metadata"]["labels"][LABEL_JOB_UID] == "job-uid"
    assert set(template["metadata"]["annotations"]) == {"a", "lorarl.io/manifest"}
    assert template["spec"]["restartPolicy"] == "Never"
    assert template["spec"]["enableServiceLinks"] is True, "the store's address may be built from such variables"
    assert [volume["name"] for volume in template["spec"]["volumes"]] == ["job", "secret-0", "scratch", "ca"]
    assert {"name": "ca", "mountPath": "/ca"} in container["volumeMounts"]
    assert env_of(action.manifest)["SSL_CERT_FILE"] == "/ca/ca.pem"
    assert container["resources"]["requests"]["cpu"] == "100m"
    assert template["spec"]["securityContext"] == {**pod_security_context(), "runAsUser": 1234}
    assert container["securityContext"] == security_context()


def test_a_clean_up_that_kueue_suspends_is_reported():
    decision = decided(deleted(), cleanup=cleanup(suspend=True))
    (event,) = decision.events
    assert "Job lorarl-demo-cleanup is suspended, as Kueue does with Jobs" in event.message
    assert (decision.actions, decision.recheck_seconds) == ((), 60)


def test_a_clean_up_that_has_not_begun_is_deleted_at_the_deadline():
    """It would delete what a new job of this name writes."""
    decision = decided(deleted(deletionTimestamp=ago(900)), cleanup=cleanup(suspend=True))
    assert decision.actions == (RemoveFinalizer(), Delete("Job", "lorarl-demo-cleanup", "cleanup-uid"))
    older = decided(deleted(deletionTimestamp=ago(900)), cleanup=cleanup(owner="an-older-job"))
    assert older.actions == (RemoveFinalizer(),)


def test_its_service_account_is_deleted_with_the_clean_up():
    decision = decided(deleted(WITH_ACCOUNT), cleanup=cleanup())
    (apply,) = decision.prepare
    assert apply.manifest["metadata"]["ownerReferences"][0]["uid"] == "cleanup-uid"
    pods = [raw_pod("cleanup", attempt=0)]
    assert decided(deleted(WITH_ACCOUNT), cleanup=cleanup(), pods=pods).prepare == ()
    assert decided(deleted(), cleanup=cleanup()).prepare == ()


def test_the_clean_up_never_runs_as_another_jobs_account():
    account = decided(deleted(WITH_ACCOUNT), cleanup=cleanup()).prepare[0].manifest["metadata"]["name"]
    assert account == "lorarl-demo.cleanup"
    assert account != access_name("demo-cleanup")


def said(message, code):
    state = {"terminated": {"exitCode": code, "message": message, "finishedAt": ago(1)}}
    return [raw_pod("cleanup", attempt=0, containerStatuses=[{"name": "cleanup", "state": state}])]


def test_what_stays_in_the_folder_is_reported():
    pods = said("deleted the checkpoints in s3://team/adapters/demo. It still has what lorarl did not write: a.txt", 0)
    decision = decided(deleted(), cleanup=cleanup(condition("Complete", True)), pods=pods)
    (event,) = decision.events
    assert event.reason == "CheckpointsRemoved"
    assert event.message.endswith("s3://team/adapters/demo. It still has what lorarl did not write: a.txt.")


def test_a_folder_that_is_not_the_jobs_stays_and_no_try_is_repeated():
    (action,) = decided(deleted()).actions
    (rule,) = action.manifest["spec"]["podFailurePolicy"]["rules"]
    assert rule == {"action": "FailJob", "onExitCodes": {"containerName": "cleanup", "operator": "In", "values": [77]}}
    failed = cleanup(condition("Failed", True, "PodFailurePolicy", "Container cleanup failed with exit code 77"))
    decision = decided(deleted(), cleanup=failed, pods=said("lorarl: s3://team/adapters/demo has no latest.json", 77))
    (event,) = decision.events
    assert event.reason == "CheckpointsLeft"
    assert "failed: lorarl: s3://team/adapters/demo has no latest.json" in event.message


def test_after_the_checkpoints_the_job_is_deleted():
    assert decided(deleted(), cleanup=cleanup(condition("Complete", True))).actions == (RemoveFinalizer(),)


@pytest.mark.parametrize(
    ("job", "rest", "why"),
    [
        (deleted(), {"cleanup": cleanup(condition("Failed", True, "BackoffLimitExceeded", "no access"))}, "no access"),
        (deleted(deletionTimestamp=ago(900)), {"cleanup": cleanup()}, "longer than 900 s"),
        (deleted(deletionTimestamp=ago(900)), {"ray_jobs": [raw_ray_job()]}, "longer than 900 s"),
        (deleted({"checkpoint": {"uri": "nowhere", "deletionPolicy": "Delete"}}), {}, "not valid"),
        (
            deleted(),
            {"refusal": Refusal("Job", "lorarl-demo-cleanup", 403, "NamespaceTerminating", "x", START, 1)},
            "namespace is being deleted",
        ),
        (
            deleted(),
            {
                "refusal": Refusal(
                    "Job", "lorarl-demo-cleanup", 422, "Invalid", "metadata.annotations: Too long", START, 1
                )
            },
            "refuses Job lorarl-demo-cleanup: metadata.annotations: Too long",
        ),
    ],
)
def test_it_gives_up_and_says_what_is_left(job, rest, why):
    ray_jobs = rest.pop("ray_jobs", []) if "ray_jobs" in rest else []
    decision = decided(job, *ray_jobs, **rest)
    assert decision.actions[0] == RemoveFinalizer()
    assert why in decision.events[0].message
    assert "/demo stays in the store" in decision.events[0].message


@pytest.mark.parametrize("message", REFUSED_BY_ADMISSION)
def test_a_policy_may_let_the_clean_up_pass_before_the_time_is_over(message):
    refusal = Refusal("Job", "lorarl-demo-cleanup", 422, "Invalid", message, START, 1)
    decision = decided(deleted(), refusal=refusal)
    assert decision.actions == () and decision.recheck_seconds


def test_the_clean_up_of_an_older_job_is_waited_for():
    decision = decided(deleted(), cleanup=cleanup(owner="an-older-job"))
    assert decision.actions == ()
    assert decision.recheck_seconds == 60
    (event,) = decision.events
    assert "Job lorarl-demo-cleanup of an older job with this name still exists" in event.message


def test_a_job_that_never_ran_is_deleted_without_a_clean_up():
    assert decided(deleted(status={"phase": "Suspended"})).actions == (RemoveFinalizer(),)


def test_a_job_without_a_status_may_have_run():
    """Its RayJob was created, and before that was recorded the operator was killed, or the job deleted."""
    (action,) = decided(deleted(status={})).actions
    assert isinstance(action, Create)


def test_a_policy_changed_to_retain_removes_the_finalizer():
    assert decided(deleted({"checkpoint": {"uri": "s3://team/adapters"}})).actions == (RemoveFinalizer(),)


def test_a_refusal_for_another_reason_is_tried_again():
    refusal = Refusal("Job", "lorarl-demo-cleanup", 403, "Forbidden", "exceeded quota", START, 1)
    assert decided(deleted(), refusal=refusal).recheck_seconds == 30
    assert decided(deleted(), refusal=refusal, now=START + timedelta(seconds=30)).actions
