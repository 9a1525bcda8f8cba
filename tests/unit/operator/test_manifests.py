"""The objects that the operator builds.

Whole ones are in golden/. `LORARL_WRITE_GOLDEN=1` writes them again; review the difference before you commit it.
"""

from __future__ import annotations

import os
import re
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lorarl_api.faults import ManifestError
from lorarl_api.load import documents
from lorarl_api.pod_merge import merge
from lorarl_api.v1alpha1 import CLAIMS_FOLDER, REWARDS_FOLDER, LoRARLJob
from lorarl_operator.decide import parse
from lorarl_operator.decide.names import attempt_of
from lorarl_operator.decide.parse import NOT_PASSED
from lorarl_operator.decide.valid_spec import checked_spec
from lorarl_operator.manifests.access import grants, needs
from lorarl_operator.manifests.placement import _PREFERRED, _REQUIRED, Avoided
from lorarl_operator.manifests.rayjob import OUT_FOLDER, RAY_VERSION, ray_job
from unit.operator.built import built, head, workers
from unit.operator.observed_world import SETTINGS, raw_job

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
FOUND = {"namespace": "team", "uid": "11111111-2222-3333-4444-555555555555", "generation": 1}


def job_of(path, **metadata):
    raw = documents(path)[0]
    raw["metadata"] = FOUND | raw["metadata"] | metadata
    return parse.job(raw)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_the_whole_rayjob(kind):
    job = job_of(ROOT / "examples/addition-cluster-cpu.yaml" if kind == "cpu" else HERE / "golden/gpu-job.yaml")
    cluster = checked_spec(job).cluster
    objects = [*needs(job, cluster, SETTINGS), *grants(job, cluster), ray_job(job, checked_spec(job), 2, SETTINGS)]
    text = yaml.safe_dump_all(objects, sort_keys=False, width=130)
    golden = HERE / f"golden/{kind}-rayjob.yaml"
    if os.environ.get("LORARL_WRITE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


KEYS = (
    *("name", "image", "resources", "limits", "requests", "memory", "env", "volumeMounts", "mountPath", "emptyDir"),
    *("nodeAffinity", _REQUIRED, _PREFERRED, "nodeSelectorTerms", "matchFields"),
)
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.sampled_from(["ray-worker", "1Gi", "/mnt"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=8,
)


@given(
    parts=st.dictionaries(st.sampled_from(["affinity", "volumes", "tolerations", "initContainers"]), JUNK),
    container=st.dictionaries(st.sampled_from(["resources", "env", "volumeMounts", "image"]), JUNK),
    name=st.sampled_from(["ray-worker", "side"]),
    avoided=st.sampled_from([Avoided(), Avoided(never=("a",), last=("b",))]),
)
@example({}, {"resources": {"limits": "64Gi"}}, "ray-worker", Avoided())
@example({"affinity": "a"}, {}, "ray-worker", Avoided())
@example({"affinity": {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": [None]}}}}, {}, "side", Avoided(never=("a",)))
@settings(deadline=None)
def test_an_override_of_any_form_is_built_or_named(parts, container, name, avoided):
    """The CRD takes any. The API server judges what is built, so nothing here may fail otherwise."""
    pod = parts | {"containers": [container | {"name": name}]}
    job = parse.job(raw_job({"cluster": {"podTemplateOverrides": {"worker": {"spec": pod}}}}))
    with suppress(ManifestError):
        ray_job(job, checked_spec(job), 1, SETTINGS, avoided=avoided)


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_each_example_for_a_cluster_has_a_rayjob(path):
    job = job_of(path)
    if checked_spec(job).checkpoint.uri.startswith("file:"):
        with pytest.raises(ManifestError, match=r"spec\.checkpoint\.uri"):
            ray_job(job, checked_spec(job), 1, SETTINGS)
        return
    rayjob = ray_job(job, checked_spec(job), 1, SETTINGS)
    assert len(rayjob["metadata"]["name"]) <= 47
    assert LoRARLJob.model_validate(documents(path)[0], by_alias=True, by_name=False)


def test_rays_version_is_that_of_our_image():
    trainer = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["trainer"]
    assert any(each.startswith("ray[") and each.endswith(f"=={RAY_VERSION}") for each in trainer)


def test_with_a_queue_everything_is_deleted_at_the_end():
    spec = built(labels={"kueue.x-k8s.io/queue-name": "research"})["spec"]
    assert "suspend" not in spec
    assert (spec["shutdownAfterJobFinishes"], spec["ttlSecondsAfterFinished"], "deletionStrategy" in spec) == (
        True,
        0,
        False,
    )


def test_the_docs_say_which_labels_are_not_copied():
    section = (ROOT / "docs/jobs.md").read_text().partition("## Volcano, KAI")[2].partition("\n## ")[0]
    named = section.partition("Not copied are")[2].partition("\n")[0]
    assert set(re.findall(r"`([-a-z0-9.]+/)`", named)) == set(NOT_PASSED)


def test_labels_and_annotations_reach_the_pods():
    own = {"example.com/team": "research", "cost-center": "7", "yunikorn.apache.org/queue": "root.a"}
    queue = {"kueue.x-k8s.io/queue-name": "research", "ray.io/priority-class-name": "high"}
    tools = {"app.kubernetes.io/instance": "argo", "argocd.argoproj.io/tracking-id": "x", "lorarl.io/attempt": "99"}
    rayjob = built(labels=own | queue | tools, annotations=own | tools)
    assert (own | queue).items() <= rayjob["metadata"]["labels"].items()
    assert own.items() <= rayjob["metadata"]["annotations"].items()
    for template in (head(rayjob), workers(rayjob)["template"]):
        for kind in ("labels", "annotations"):
            found = template["metadata"][kind]
            assert own.items() <= found.items()
            assert not (queue.keys() | {"app.kubernetes.io/instance", "argocd.argoproj.io/tracking-id"}) & found.keys()
        assert template["metadata"]["labels"]["lorarl.io/attempt"] == "1"


def test_autoscalers_do_not_move_the_pods_unless_they_may():
    kept = {"karpenter.sh/do-not-disrupt": "true", "cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
    rayjob = built()
    for template in (head(rayjob), workers(rayjob)["template"]):
        assert template["metadata"]["annotations"] == kept
    moved = built({"cluster": {"allowConsolidation": True}})
    assert "annotations" not in head(moved)["metadata"]
    mine = built(annotations={"karpenter.sh/do-not-disrupt": "false"})
    assert head(mine)["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "false"


def test_without_a_queue_the_head_stays_for_its_logs():
    spec = built()["spec"]
    assert "shutdownAfterJobFinishes" not in spec
    rules = spec["deletionStrategy"]["deletionRules"]
    assert [(rule["policy"], *rule["condition"].values()) for rule in rules] == [
        ("DeleteWorkers", "SUCCEEDED", 0),
        ("DeleteCluster", "SUCCEEDED", 600),
        ("DeleteWorkers", "Failed", 0),
        ("DeleteCluster", "Failed", 600),
    ]


def test_a_ray_worker_has_room_for_its_actors_whatever_its_pods_cpus():
    worker = workers(built({"cluster": {"gpusPerNode": 8, "cpusPerNode": "4"}}))
    assert worker["rayStartParams"] == {"num-cpus": "8", "num-gpus": "8"}
    for field in ("tensorParallelSize", "expertParallelSize"):
        worker = workers(built({"trainer": {field: 2}}))
        assert worker["rayStartParams"] == {"num-cpus": "2", "num-gpus": "0"}


@pytest.mark.parametrize("mode", ["SidecarMode", "K8sJobMode", "HTTPMode"])
def test_each_of_our_containers_is_restricted(mode):
    rayjob = built({"cluster": {"submissionMode": mode}})
    pods = [head(rayjob)["spec"], workers(rayjob)["template"]["spec"]]
    assert ("submitterPodTemplate" in rayjob["spec"]) == (mode == "K8sJobMode")
    pods += [rayjob["spec"]["submitterPodTemplate"]["spec"]] if mode == "K8sJobMode" else []
    for pod in pods:
        assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        assert pod["restartPolicy"] == "Never"
        for container in pod["containers"]:
            assert {"name": "HOME", "value": "/tmp"} in container["env"]
            assert "/tmp" in [mount["mountPath"] for mount in container["volumeMounts"]]
            assert container["securityContext"] == {
                "readOnlyRootFilesystem": True,
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }


@pytest.mark.parametrize("mode", ["SidecarMode", "K8sJobMode"])
def test_a_service_named_vllm_sets_no_variable_of_vllm(mode):
    """The kubelet would set VLLM_PORT=tcp://... for it, with which vLLM ends."""
    override = {"worker": {"spec": {"enableServiceLinks": True}}}
    for overrides, expected in (({}, False), (override, True)):
        rayjob = built({"cluster": {"submissionMode": mode, "podTemplateOverrides": overrides}})
        assert head(rayjob)["spec"]["enableServiceLinks"] is False
        assert workers(rayjob)["template"]["spec"]["enableServiceLinks"] is expected
        if mode == "K8sJobMode":
            assert rayjob["spec"]["submitterPodTemplate"]["spec"]["enableServiceLinks"] is False


def test_secrets_are_named_and_never_read():
    spec = {
        "model": {"uri": "hf://a/b", "credentialsSecret": "x" * 200},
        "checkpoint": {"uri": "s3://t", "credentialsSecret": "s3-keys"},
    }
    pod = head(built(spec))["spec"]
    assert [volume["secret"] for volume in pod["volumes"] if "secret" in volume] == [
        {"secretName": "s3-keys"},
        {"secretName": "x" * 200},
    ]
    mount = {"name": "secret-0", "mountPath": "/etc/lorarl/secrets/s3-keys", "readOnly": True}
    assert mount in pod["containers"][0]["volumeMounts"]
    labelled = built(
        {"cluster": {"podTemplateOverrides": {"head": {"metadata": {"labels": {"credentialsSecret": "no"}}}}}}
    )
    assert head(labelled)["spec"]["volumes"] == head(built())["spec"]["volumes"]


def test_workers_mount_only_the_secrets_that_they_read():
    """The keys of trackers, data and servers stay in the head."""
    spec = {
        "model": {"uri": "hf://a/b", "credentialsSecret": "model"},
        "data": {"train": {"uri": "s3://team/train.jsonl"}, "credentialsSecret": "data"},
        "checkpoint": {"uri": "s3://t", "credentialsSecret": "store"},
        "tracking": {"wandb": {"project": "p", "credentialsSecret": "tracker"}},
        "rollout": {"servers": ["http://vllm:8000"], "credentialsSecret": "servers"},
    }

    def secrets(pod):
        return {volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}

    assert secrets(head(built(spec))["spec"]) == {"model", "data", "store", "tracker", "servers"}
    assert secrets(workers(built(spec))["template"]["spec"]) == {"model", "store"}


def test_claims_of_model_and_data_are_mounted_read_only():
    claim = "models." + "x" * 100
    spec = {"model": {"uri": f"pvc://{claim}/qwen"}, "data": {"train": {"uri": "pvc://data/train.jsonl"}}}
    for pod in (head(built(spec))["spec"], workers(built(spec))["template"]["spec"]):
        claims = [volume["persistentVolumeClaim"] for volume in pod["volumes"] if "persistentVolumeClaim" in volume]
        assert claims == [{"claimName": "data", "readOnly": True}, {"claimName": claim, "readOnly": True}]
        mounts = [
            mount for mount in pod["containers"][0]["volumeMounts"] if mount["mountPath"].startswith(CLAIMS_FOLDER)
        ]
        assert mounts == [
            {"name": "claim-0", "mountPath": "/mnt/pvc/data", "readOnly": True},
            {"name": "claim-1", "mountPath": f"/mnt/pvc/{claim}", "readOnly": True},
        ]


def test_everything_that_the_trainer_writes_is_on_volumes_of_the_pods():
    rayjob = built()
    assert rayjob["spec"]["entrypoint"].endswith(f" --out {OUT_FOLDER}")
    for pod in (head(rayjob)["spec"], workers(rayjob)["template"]["spec"]):
        container = pod["containers"][0]
        empty = {volume["name"] for volume in pod["volumes"] if "emptyDir" in volume}
        writable = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] in empty]
        env = {each["name"]: each.get("value", "") for each in container["env"]}
        names = ("LORARL_CACHE", "LORARL_RUN_DIR", "HF_HOME", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR")
        written = [OUT_FOLDER, *(env[name] for name in names)]
        assert all(any(folder == path or folder.startswith(f"{path}/") for path in writable) for folder in written)
        # Pods may share the volume of the cache, so a pod's own files must not be there.
        assert not any(folder.startswith(env["LORARL_CACHE"]) for folder in (OUT_FOLDER, env["LORARL_RUN_DIR"]))


def test_an_existing_service_account_is_bound_and_not_created():
    job = parse.job(raw_job({"cluster": {"serviceAccountName": "trainer"}}))
    cluster = checked_spec(job).cluster
    objects = {each["kind"]: each for each in (*needs(job, cluster, SETTINGS), *grants(job, cluster))}
    assert "ServiceAccount" not in objects
    assert objects["RoleBinding"]["subjects"][0]["name"] == "trainer"
    rule = {
        "apiGroups": ["lorarl.io"],
        "resources": ["lorarljobs/status"],
        "resourceNames": ["demo"],
        "verbs": ["get", "patch"],
    }
    assert objects["Role"]["rules"] == [rule]


class TestOverrides:
    def test_what_overrides_change(self):
        base = {
            "containers": [{"name": "ray", "env": [{"name": "A", "value": "1"}]}],
            "volumes": [{"name": "v", "emptyDir": {}}],
            "x": 1,
        }
        over = {
            "containers": [
                {"name": "ray", "env": [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}]},
                {"name": "sidecar"},
            ],
            "volumes": [{"name": "v", "hostPath": {"path": "/x"}}],
            "x": None,
            "tolerations": [{"operator": "Exists"}],
        }
        assert merge(base, over, "o") == {
            "containers": [
                {"name": "ray", "env": [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}]},
                {"name": "sidecar"},
            ],
            "volumes": [{"name": "v", "hostPath": {"path": "/x"}}],
            "tolerations": [{"operator": "Exists"}],
        }
        assert base["x"] == 1
        assert base["containers"][0]["env"] == [{"name": "A", "value": "1"}]

    @pytest.mark.parametrize(
        ("override", "path"),
        [
            (
                {"containers": [{"image": "x"}]},
                r"o.containers\[0\]: got a mapping with 1 entry, expected a mapping with name. Name the container",
            ),
            ({"containers": {"name": "ray"}}, "o.containers: got a mapping with 1 entry, expected a list"),
            ({"volumes": ["v"]}, r"o.volumes\[0\]"),
            ({"metadata": []}, r"o.metadata: got .*, expected a mapping"),
        ],
    )
    def test_an_override_that_cannot_be_merged_is_reported(self, override, path):
        with pytest.raises(ManifestError, match=path):
            merge({"containers": [{"name": "ray"}], "metadata": {"name": "x"}}, override, "o")

    def test_an_init_container_reports_the_end_of_its_log(self):
        fetches = {"name": "fetch", "image": "curl"}
        quiet = {"name": "quiet", "image": "curl", "terminationMessagePolicy": "File"}
        override = {"worker": {"spec": {"initContainers": [fetches, quiet]}}}
        pod = workers(built({"cluster": {"podTemplateOverrides": override}}))["template"]["spec"]
        assert [one["terminationMessagePolicy"] for one in pod["initContainers"]] == ["FallbackToLogsOnError", "File"]

    def test_the_operators_labels_win(self):
        override = {"metadata": {"labels": {"lorarl.io/attempt": "99", "mine": "1"}}}
        labels = head(built({"cluster": {"podTemplateOverrides": {"head": override}}}))["metadata"]["labels"]
        assert (labels["lorarl.io/attempt"], labels["mine"]) == ("1", "1")
        for key, value in (("name", "one"), ("finalizers", ["a.example/kept"])):
            overrides = {"podTemplateOverrides": {"worker": {"metadata": {key: value}}}}
            with pytest.raises(ManifestError, match="labels and annotations alone"):
                built({"cluster": overrides})


@pytest.mark.parametrize(
    ("name", "attempt"),
    [
        ("demo-1", 1),
        ("demo-12", 12),
        ("demo", 0),
        ("demo-x", 0),
        ("other-3", 0),
        ("demo-²", 0),
        (f"demo-{'9' * 200}", 0),
    ],
)
def test_the_attempt_in_a_name(name, attempt):
    assert attempt_of("demo", name) == attempt


def test_the_head_alone_mounts_the_config_maps_of_reward_functions():
    source = {"configMap": "my-rewards"}
    rewards = [{"name": name, "function": f"mine:{name}", "source": source} for name in ("right", "tidy")]
    rayjob = built({"reward": None, "rewards": rewards})
    [volume] = [each for each in head(rayjob)["spec"]["volumes"] if each["name"].startswith("reward-")]
    assert volume["configMap"] == {"name": "my-rewards"}
    [mount] = [each for each in head(rayjob)["spec"]["containers"][0]["volumeMounts"] if each["name"] == volume["name"]]
    assert (mount["mountPath"], mount["readOnly"]) == (f"{REWARDS_FOLDER}/my-rewards", True)
    assert "my-rewards" not in str(workers(rayjob)["template"])


def test_the_head_alone_has_the_keys_and_the_claim_of_reward_code():
    source = {"uri": "s3://team/code", "credentialsSecret": "code-keys"}
    rayjob = built({"reward": {"function": "mine:score", "source": source}})
    assert "code-keys" in str(head(rayjob))
    assert "code-keys" not in str(workers(rayjob)["template"])
    assert "code-claim" in str(head(built({"reward": {"function": "m:f", "source": {"uri": "pvc://code-claim/a"}}})))
