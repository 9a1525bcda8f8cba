"""The object's metadata: the part of Kubernetes' ObjectMeta that users write."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from lorarl_api.v1alpha1.common import Model
from lorarl_api.v1alpha1.kubernetes import QUALIFIED_NAME, LabelValue

MAX_NAME = 42
"""Longest name of a job. A RayJob's name is longer by the attempt, and KubeRay allows 47 characters."""
AnnotationText = Annotated[str, Field(max_length=262_144)]
Namespace = Annotated[
    str,
    Field(
        max_length=63,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        json_schema_extra={
            "expected": "the name of a namespace: at most 63 characters a-z, 0-9 and -, "
            "with a letter or digit at both ends"
        },
    ),
]

# The rest of Kubernetes' ObjectMeta, which objects from a cluster have.
_OTHER_METADATA = frozenset(
    [
        *(
            "creationTimestamp",
            "deletionGracePeriodSeconds",
            "deletionTimestamp",
            "finalizers",
            "generateName",
            "generation",
        ),
        *("managedFields", "ownerReferences", "resourceVersion", "selfLink", "uid"),
    ]
)


class Metadata(Model):
    """The object's name and labels. The other keys of Kubernetes' ObjectMeta are not changed."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(
        description=f"Name of the job: a letter, then a-z, 0-9 and -, at most {MAX_NAME} characters. It is part of "
        "the path of its checkpoints.",
        examples=["gsm8k"],
    )
    namespace: Namespace | None = Field(None, description="Namespace in the cluster.", examples=["default"])
    labels: dict[str, LabelValue] = Field(default_factory=dict, description="Labels.")
    annotations: dict[str, AnnotationText] = Field(default_factory=dict, description="Annotations.")

    @field_validator("labels", "annotations")
    @classmethod
    def _keys_for_kubernetes(cls, value: dict[str, str]) -> dict[str, str]:
        if refused := [key for key in value if not re.fullmatch(QUALIFIED_NAME, key)]:
            raise PydanticCustomError("label_keys", "keys {refused}", {"refused": refused})
        return value

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        if isinstance(data, dict) and (unknown := sorted(str(key) for key in data if key not in cls._keys())):
            raise PydanticCustomError("metadata_keys", "unknown keys {unknown}", {"unknown": unknown})
        return data

    @classmethod
    def _keys(cls) -> frozenset[str]:
        return _OTHER_METADATA | cls.model_fields.keys()
