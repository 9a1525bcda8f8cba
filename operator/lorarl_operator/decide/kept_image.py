"""The trainer image that a job keeps: `status.trainerImage`.

An upgrade of the operator, or a tag that moves, must not change the trainer of a job in mid-training.
"""

from __future__ import annotations

from collections.abc import Sequence

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_operator.decide.models import Pod


def with_kept_image(spec: LoRARLJobSpec, kept: str) -> LoRARLJobSpec:
    """The spec with the image of earlier attempts, unless the user has named another one since."""
    return _with_image(spec, kept) if _keeps(spec, kept) else spec


def with_each_name(spec: LoRARLJobSpec, kept: str) -> list[LoRARLJobSpec]:
    """The spec with each name of the image that it asks for.

    The first attempt began before any image was kept: with that of the operator, of a template, or with a tag.
    """
    return [_with_image(spec, image) for image in (None, *_names(kept))] if _keeps(spec, kept) else [spec]


def _keeps(spec: LoRARLJobSpec, kept: str) -> bool:
    wanted = spec.cluster.image
    return bool(kept) and (not wanted or wanted in _names(kept))


def _names(kept: str) -> tuple[str, str]:
    """The tag that a job began with stands for the digest that it keeps."""
    return kept, kept.partition("@")[0]


def _with_image(spec: LoRARLJobSpec, image: str | None) -> LoRARLJobSpec:
    return spec.model_copy(update={"cluster": spec.cluster.model_copy(update={"image": image})})


def image_in_use(pods: Sequence[Pod]) -> str | None:
    """The image of an attempt's pods, with its digest if it was pulled; None if they have none in common.

    An override may give the head another image than the workers.
    """
    images = {pod.image for pod in pods}
    if len(images) != 1 or not (image := images.pop()):
        return None
    digests = {digest for pod in pods if (digest := _digest(image, pod.image_id))}
    return f"{image}@{digests.pop()}" if "@" not in image and len(digests) == 1 else image


def _digest(image: str, image_id: str) -> str:
    """The digest that the kubelet reports; empty if the image was never pulled from its own registry.

    An image that was imported into a node cannot be found by a digest.
    """
    repository, _, digest = image_id.rpartition("://")[2].partition("@")
    return digest if digest.startswith("sha256:") and _full(repository) == _full(_untagged(image)) else ""


def _untagged(image: str) -> str:
    host, slash, path = image.rpartition("/")
    return host + slash + path.partition(":")[0]


def _full(repository: str) -> str:
    """A repository with its registry. Docker Hub's is implied."""
    first, slash, _ = repository.partition("/")
    if not slash:
        return f"docker.io/library/{repository}"
    return repository if "." in first or ":" in first or first == "localhost" else f"docker.io/{repository}"
