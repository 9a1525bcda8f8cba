"""Templates: what a platform gives to jobs, and what it lets them change."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from lorarl_api.v1alpha1.cluster import ClusterSpec
from lorarl_api.v1alpha1.common import Model, ObjectName
from lorarl_api.v1alpha1.kubernetes import AnnotationValue, LabelValue
from lorarl_api.v1alpha1.runtime import TrackingSpec

TEMPLATE_KIND = "LoRARLJobTemplate"
CLUSTER_TEMPLATE_KIND = "ClusterLoRARLJobTemplate"

PARTS: dict[str, type[Model]] = {"cluster": ClusterSpec, "tracking": TrackingSpec}
"""The parts of a job's spec that a template may give values for."""
NOT_IN_TEMPLATES = ("nodes", "minNodes", "gpusPerNode", "environments")
"""How much a job asks for is its own: other fields of a job depend on it."""
KEYS = ("labels", "annotations")


def fields_of(part: str) -> list[str]:
    """The fields of `cluster` or `tracking` that a template may have, as YAML writes them."""
    names = [field.alias or name for name, field in PARTS[part].model_fields.items()]
    return [name for name in names if name not in NOT_IN_TEMPLATES]


LOCKABLE = (*KEYS, *(path for part in PARTS for path in (part, *(f"{part}.{name}" for name in fields_of(part)))))
"""What `locked` may name."""

Lockable = Annotated[str, Field(max_length=128, examples=["cluster.image"], json_schema_extra={"enum": list(LOCKABLE)})]


class TemplateRef(Model):
    """A template whose values the job has where it sets none itself."""

    kind: Literal["LoRARLJobTemplate", "ClusterLoRARLJobTemplate"] = Field(
        "LoRARLJobTemplate",
        description="LoRARLJobTemplate: one of the job's namespace. ClusterLoRARLJobTemplate: one for all namespaces.",
    )
    name: ObjectName = Field(description="Name of the template.", examples=["gpu-pool"])


class TemplateSpec(Model):
    """Values for jobs that name this template, and the fields that they may not change."""

    labels: dict[str, LabelValue] = Field(
        default_factory=dict,
        max_length=64,
        description="Labels that RayJob and pods get as if the job had them, such as that of its queue.",
        examples=[{"kueue.x-k8s.io/queue-name": "research"}],
    )
    annotations: dict[str, AnnotationValue] = Field(
        default_factory=dict,
        max_length=64,
        description="Annotations that RayJob and pods get as if the job had them.",
        examples=[{"example.com/cost-centre": "research"}],
    )
    cluster: dict[str, Any] = Field(
        default_factory=dict,
        description="Any fields of a job's cluster but nodes, minNodes, gpusPerNode and environments.",
    )
    tracking: dict[str, Any] = Field(default_factory=dict, description="Any fields of a job's tracking.")
    locked: list[Lockable] = Field(
        default_factory=list,
        max_length=64,
        description="Fields that a job may not set, except to the template's own value. A field that the template does "
        "not set may be locked too: then no job can use it.",
        examples=[["cluster.image", "cluster.podTemplateOverrides"]],
    )

    @field_validator("locked")
    @classmethod
    def _exist(cls, paths: list[str]) -> list[str]:
        if unknown := [path for path in paths if path not in LOCKABLE]:
            raise PydanticCustomError("locked", "unknown {paths}", {"paths": unknown})
        return paths

    @field_validator("cluster", "tracking")
    @classmethod
    def _without_size(cls, part: dict[str, Any]) -> dict[str, Any]:
        if found := [name for name in NOT_IN_TEMPLATES if name in part]:
            raise PydanticCustomError("size", "no {found}", {"found": found})
        return part
