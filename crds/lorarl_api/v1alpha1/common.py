"""The common parts of the contract: the strict base model, names, and rules for URIs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from lorarl_api.rules import Rule, Ruled
from lorarl_api.v1alpha1.stores import HUBS, PLACES

GROUP = "lorarl.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "LoRARLJob"
MAX_SECONDS = 2**31 - 1
"""The longest time in Kubernetes' own job APIs."""

FREE_FORM: dict[str, Any] = {"x-kubernetes-preserve-unknown-fields": True}
"""A part of a field's schema: the API server keeps any keys of the mapping."""

# `expected` describes a pattern in words. Faults show it instead of the pattern. It is not part of the CRD.
SecretName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        examples=["s3-keys"],
        json_schema_extra={
            "expected": "the name of a Secret (a-z, 0-9, - and ., at most 253 characters), never a key itself"
        },
    ),
]
ObjectName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        json_schema_extra={
            "expected": "the name of an object in the cluster (a-z, 0-9, - and ., at most 253 characters)"
        },
    ),
]
CLAIMS_FOLDER = "/mnt/pvc"
"""Where pods mount the PersistentVolumeClaims of pvc:// URIs, each in a folder with its name."""

REWARDS_FOLDER = "/etc/lorarl/rewards"
"""Where the head mounts the ConfigMaps with reward functions, each in a folder with its name."""


def claim_of(uri: str) -> str | None:
    """Name of the PersistentVolumeClaim of a pvc:// URI; None for any other."""
    scheme, _, rest = uri.partition("://")
    return rest.partition("/")[0] if scheme == "pvc" else None


FieldName = Annotated[str, Field(min_length=1, max_length=128)]
EvalName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=40,
        pattern=r"^[a-z][a-z0-9_-]*$",
        examples=["gsm8k"],
        json_schema_extra={"expected": "a name of at most 40 characters a-z, 0-9, _ and - that begins with a letter"},
    ),
]
Uri = Annotated[str, Field(min_length=1, max_length=1024)]


class Model(Ruled):
    """A part of the contract: camelCase in YAML, no unknown keys, no silent conversion."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=True,
        serialize_by_alias=True,
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
    )

    @model_validator(mode="before")
    @classmethod
    def _null_means_absent(cls, data: Any) -> Any:
        """The API server drops nulls before it sets defaults, and so does Python."""
        if not isinstance(data, dict):
            return data
        known = {key for name, field in cls.model_fields.items() for key in (name, field.alias)}
        return {key: value for key, value in data.items() if value is not None or key not in known}

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add the rules to the schema."""
        schema = handler.resolve_ref_schema(handler(core))
        rules = [rule.as_validation() for rule in (*cls.rules, *cls.cluster_rules)]
        if rules := [*rules, *(field.as_validation() for field in cls.immutable)]:
            schema["x-kubernetes-validations"] = rules
        return schema


# A user before an @ in the authority, or a query with credentials (S3's presigned URLs, Azure's SAS).
_CREDENTIALS = r"://[^/]*@|[?&;](?i:[a-z0-9_.-]*(key|token|secret|sig|signature|password|credential)[a-z0-9_.-]*)="


def uri_rules(
    field: str, schemes: Sequence[str], *, optional: bool = False, secret: str = "credentialsSecret"
) -> tuple[Rule, ...]:
    """The rules of a field with a URI: it is well formed, has one of `schemes`, and has no credentials.

    Credentials would be visible in each listing of the jobs.
    """
    absent = f"!has(self.{field}) || " if optional else ""
    places = [PLACES[scheme] for scheme in schemes]
    begins = [begin for place in places for begin in place.begins]
    return (
        Rule(
            field,
            f"{absent}self.{field}.matches(r'^({'|'.join(place.pattern for place in places)})$')",
            f"be a URI that starts with {', '.join(begins[:-1])} or {begins[-1]}",
            ("Write a name on the hub as hf://ORG/NAME, and a" if set(HUBS) & set(schemes) else "Write a")
            + " local path as file:PATH, without ~.",
        ),
        without_credentials(field, absent=absent, secret=secret),
    )


def without_credentials(field: str, *, absent: str = "", secret: str = "credentialsSecret") -> Rule:
    """The rule that a URI has no credentials. `absent` is the beginning of the expression for one that is optional."""
    return Rule(
        field,
        f"{absent}!self.{field}.matches(r'{_CREDENTIALS}')",
        "not contain credentials",
        f"Remove them from the URI, renew them, and store them in {secret}.",
    )
