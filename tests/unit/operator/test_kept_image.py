"""A job keeps its trainer image, whatever the operator's default or the tag become."""

from __future__ import annotations

import pytest

from unit.operator.decisions import RUNNING, conditions, decided, running_status, status_of
from unit.operator.observed_world import SETTINGS, condition, raw_job, raw_pod, raw_ray_job

SHA = f"sha256:{'a' * 64}"
OLD = "registry.example.com/lorarl/trainer:0.0.9"


def pod(role, image=OLD, image_id=""):
    found = raw_pod(role, containerStatuses=[{"name": f"ray-{role}", "imageID": image_id}])
    found["spec"]["containers"] = [{"name": f"ray-{role}", "image": image}, {"name": "submitter", "image": "other"}]
    return found


def recorded(*pods, **status):
    """status.trainerImage when an attempt begins to run."""
    decision = decided(raw_job(status=status_of("Starting", **status)), raw_ray_job(**RUNNING), pods=list(pods))
    return decision.status.get("trainerImage")


def image_of_next(status, image=None):
    last = condition("Running", False, "Restarting", age=60)
    spec = {"cluster": {"image": image}} if image else None
    decision = decided(raw_job(spec, status_of("Restarting", "demo-2", conditions=[last], **status)))
    cluster = decision.actions[-1].manifest["spec"]["rayClusterSpec"]
    groups = (cluster["headGroupSpec"], cluster["workerGroupSpecs"][0])
    images = {group["template"]["spec"]["containers"][0]["image"] for group in groups}
    assert len(images) == 1
    return images.pop()


@pytest.mark.parametrize(
    ("image", "image_id", "kept"),
    [
        (OLD, f"registry.example.com/lorarl/trainer@{SHA}", f"{OLD}@{SHA}"),
        ("localhost:5000/trainer", f"localhost:5000/trainer@{SHA}", f"localhost:5000/trainer@{SHA}"),
        ("lorarl/trainer:1", f"docker.io/lorarl/trainer@{SHA}", f"lorarl/trainer:1@{SHA}"),
        ("trainer:1", f"docker-pullable://docker.io/library/trainer@{SHA}", f"trainer:1@{SHA}"),
        # Imported into the node: no registry has this digest.
        (OLD, SHA, OLD),
        (OLD, f"docker.io/library/import-2026-03-01@{SHA}", OLD),
        (OLD, "", OLD),
        (f"{OLD}@{SHA}", f"registry.example.com/lorarl/trainer@{SHA}", f"{OLD}@{SHA}"),
    ],
)
def test_the_image_of_a_running_attempt_is_recorded(image, image_id, kept):
    assert recorded(pod("head", image, image_id), pod("worker", image, image_id)) == kept


def test_two_images_in_one_attempt_are_overrides_and_not_recorded():
    assert recorded(pod("head"), pod("worker", "mine:1")) is None


def test_the_record_costs_no_write():
    status = running_status(trainerImage=f"{OLD}@{SHA}")
    pods = [pod(role, OLD, f"registry.example.com/lorarl/trainer@{SHA}") for role in ("head", "worker")]
    assert decided(raw_job(status=status), raw_ray_job(**RUNNING), pods=pods).status is None


def test_the_next_attempt_keeps_the_image():
    assert image_of_next({}) == SETTINGS.trainer_image
    assert image_of_next({"trainerImage": f"{OLD}@{SHA}"}) == f"{OLD}@{SHA}"


@pytest.mark.parametrize(
    ("image", "used"),
    [(OLD, f"{OLD}@{SHA}"), (f"{OLD}@{SHA}", f"{OLD}@{SHA}"), ("mine:2", "mine:2"), (f"{OLD}@{SHA[:-1]}b", None)],
)
def test_the_users_own_image_wins(image, used):
    assert image_of_next({"trainerImage": f"{OLD}@{SHA}"}, image) == (used or image)


@pytest.mark.parametrize(
    ("image", "hint"),
    [
        (f"{OLD}@{SHA}", "The job keeps the image of its first attempt (status.trainerImage). Set cluster.image to "),
        ("mine:2", "Correct cluster.image, or name a Secret"),
    ],
)
def test_a_kept_image_that_the_registry_lost_is_named_as_the_jobs_record(image, hint):
    """The job never set cluster.image, and the same tag again stands for the kept digest."""
    status = status_of("Starting", "demo-2", trainerImage=f"{OLD}@{SHA}")
    waits = {"name": "ray-worker", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}}
    lacks = raw_pod("worker", 2, phase="Pending", containerStatuses=[waits])
    lacks["spec"]["containers"] = [{"name": "ray-worker", "image": image}]
    ray_job = raw_ray_job(2, jobDeploymentStatus="Initializing")
    found = conditions(decided(raw_job(status=status), ray_job, pods=[lacks]))["Running"]
    assert found["reason"] == "ImagePull"
    assert hint in found["message"]
