"""What the pods of a job request: CPUs, memory, disk and GPUs."""

from __future__ import annotations

import pytest

from lorarl_operator.decide import parse
from lorarl_operator.decide.valid_spec import checked_spec
from lorarl_operator.manifests.access import needs
from unit.operator.built import built, head, workers
from unit.operator.observed_world import SETTINGS, raw_job


def requested(cluster, *, queued=False):
    """Resources of a worker's container."""
    rayjob = built({"cluster": cluster}, queued=queued)
    return workers(rayjob)["template"]["spec"]["containers"][0]["resources"]


def test_a_gpu_job_without_requests_has_room_for_its_gpus():
    gpus = {"nvidia.com/gpu": 4}
    assert requested({"gpusPerNode": 4}) == {
        "requests": {"cpu": "32", "memory": "256Gi", "ephemeral-storage": "40Gi"} | gpus,
        "limits": gpus,
    }


def test_what_the_job_names_replaces_it():
    named = {"cpusPerNode": 12, "memoryPerNode": "100Gi", "diskPerNode": "200Gi"}
    assert requested({"gpusPerNode": 1} | named) == {
        "requests": {"cpu": "12", "memory": "100Gi", "ephemeral-storage": "200Gi", "nvidia.com/gpu": 1},
        "limits": {"memory": "100Gi", "nvidia.com/gpu": 1},
    }


def test_a_queue_need_not_cover_disks():
    assert "ephemeral-storage" not in requested({"gpusPerNode": 1}, queued=True)["requests"]
    named = requested({"gpusPerNode": 1, "diskPerNode": "200Gi"}, queued=True)["requests"]
    assert named["ephemeral-storage"] == "200Gi"


def test_a_cpu_job_requests_what_it_names():
    assert requested({}) == {}
    assert requested({"cpusPerNode": 2}) == {"requests": {"cpu": "2"}}


def test_disk_is_requested_and_limited():
    rayjob = built({"cluster": {"diskPerNode": "200Gi", "head": {"disk": "20Gi"}}})
    for pod, disk in ((head(rayjob)["spec"], "20Gi"), (workers(rayjob)["template"]["spec"], "200Gi")):
        assert pod["containers"][0]["resources"]["requests"]["ephemeral-storage"] == disk
        sizes = {volume["name"]: volume["emptyDir"] for volume in pod["volumes"] if "emptyDir" in volume}
        assert (sizes["cache"], sizes["scratch"]) == ({"sizeLimit": disk}, {"sizeLimit": disk})
    default = workers(built({"cluster": {"gpusPerNode": 1}}))["template"]["spec"]
    assert {"name": "cache", "emptyDir": {}} in default["volumes"]


class TestGpus:
    @pytest.mark.parametrize("resource", ["example.com/gpu", "nvidia.com/mig-3g.40gb"])
    def test_another_resource(self, resource):
        assert requested({"gpusPerNode": 2, "gpuResource": resource})["limits"] == {resource: 2}

    def test_none(self):
        assert "limits" not in requested({"gpusPerNode": 2, "gpuResource": ""})

    def test_a_claim_takes_the_place_of_the_resource(self):
        selector = "device.attributes['gpu.nvidia.com'].productName == 'NVIDIA H200'"
        spec = {"cluster": {"gpusPerNode": 8, "gpuClaim": {"deviceClass": "gpu.nvidia.com", "selectors": [selector]}}}
        job = parse.job(raw_job(spec))
        template = next(
            one for one in needs(job, checked_spec(job).cluster, SETTINGS) if one["kind"] == "ResourceClaimTemplate"
        )
        (request,) = template["spec"]["spec"]["devices"]["requests"]
        assert request["exactly"] == {
            "deviceClassName": "gpu.nvidia.com",
            "allocationMode": "ExactCount",
            "count": 8,
            "selectors": [{"cel": {"expression": selector}}],
        }
        pod = workers(built(spec))["template"]["spec"]
        (claim,) = pod["resourceClaims"]
        assert claim == {"name": "gpus", "resourceClaimTemplateName": template["metadata"]["name"]}
        resources = pod["containers"][0]["resources"]
        assert resources["claims"] == [{"name": "gpus"}]
        assert "nvidia.com/gpu" not in resources["requests"]
        assert "limits" not in resources
        assert "resourceClaims" not in head(built(spec))["spec"]

    def test_another_claim_is_another_object(self):
        """Kubernetes never changes the spec of a ResourceClaimTemplate."""

        def name(gpus):
            spec = {"cluster": {"gpusPerNode": gpus, "gpuClaim": {"deviceClass": "gpu.nvidia.com"}}}
            return workers(built(spec))["template"]["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]

        assert name(1) == name(1) != name(2)

    @pytest.mark.parametrize("gpus", [0, 1])
    def test_containers_without_gpus_see_none(self, gpus):
        rayjob = built({"cluster": {"gpusPerNode": gpus, "submissionMode": "K8sJobMode"}})

        def visible(pod):
            env = {each["name"]: each.get("value", "") for each in pod["containers"][0]["env"]}
            return env.get("NVIDIA_VISIBLE_DEVICES")

        assert visible(head(rayjob)["spec"]) == "void"
        assert visible(rayjob["spec"]["submitterPodTemplate"]["spec"]) == "void"
        assert visible(workers(rayjob)["template"]["spec"]) == (None if gpus else "void")

    def test_rdma_needs_no_capability(self):
        rdma = {"gpusPerNode": 8, "rdma": {"resourceName": "rdma/hca", "count": 8}}
        container = workers(built({"cluster": rdma}))["template"]["spec"]["containers"][0]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["rdma/hca"] == 8
