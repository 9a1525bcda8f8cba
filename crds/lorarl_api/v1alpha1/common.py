"""What every part of the contract shares: the strict base model, names, and rules for URIs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from lorarl_api.rules import Rule, Ruled

GROUP = "lorarl.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "LoRARLJob"

# `expected` says in words what a pattern asks for; faults show it instead of the pattern. It stays out of the CRD.
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
            "expected": "a name of an object in the cluster (a-z, 0-9, - and ., at most 253 characters)"
        },
    ),
]
CLAIMS_FOLDER = "/mnt/pvc"
"""Where pods have the PersistentVolumeClaims of pvc:// URIs, each in a folder of its name."""


def claim_of(uri: str) -> str | None:
    """Name of the PersistentVolumeClaim of a pvc:// URI; None for any other."""
    scheme, _, rest = uri.partition("://")
    return rest.partition("/")[0] if scheme == "pvc" else None


FieldName = Annotated[str, Field(min_length=1, max_length=128)]
Uri = Annotated[str, Field(min_length=1, max_length=1024)]


class Model(Ruled):
    """A part of the contract: camelCase in YAML, unknown keys refused, no silent conversion."""

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
        """The API server drops nulls before it fills in defaults; so does Python."""
        if not isinstance(data, dict):
            return data
        known = {key for name, field in cls.model_fields.items() for key in (name, field.alias)}
        return {key: value for key, value in data.items() if value is not None or key not in known}

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Carry the rules into the schema."""
        schema = handler.resolve_ref_schema(handler(core))
        if cls.rules or cls.immutable:
            of_updates = [field.as_validation() for field in cls.immutable]
            schema["x-kubernetes-validations"] = [*(rule.as_validation() for rule in cls.rules), *of_updates]
        return schema


_FORMS = {
    "hf": r"hf://[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9_.-]+)?",
    "s3": r"s3://[^/].*",
    "gs": r"gs://[^/].*",
    "az": r"az://[^/].*",
    "pvc": r"pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/.*)?",
    "https": r"https?://[^/].*",
    # file://FOLDER would make FOLDER the name of a host; ~ would be a folder of that name, since no shell reads the manifest.
    "file": r"file:(/|///)?[^/~].*",
}
_HINTS = {
    "hf": "hf://ORG/NAME",
    "s3": "s3://",
    "gs": "gs://",
    "az": "az://",
    "pvc": "pvc://CLAIM/PATH",
    "https": "http(s)://HOST",
    "file": "file:///PATH or file:PATH",
}
# Somebody before an @ in the authority, or a query with something that opens a door (S3's presigned URLs, Azure's SAS).
_CREDENTIALS = r"://[^/]*@|[?&;](?i:[a-z0-9_.-]*(key|token|secret|sig|signature|password|credential)[a-z0-9_.-]*)="


def uri_rules(
    field: str, schemes: Sequence[str], *, optional: bool = False, secret: str = "credentialsSecret"
) -> tuple[Rule, ...]:
    """The rules of a field that holds a URI: one of `schemes`, well formed, and no credentials in it (they would show in every listing).

    Args:
        field: Name of the field in the model.
        schemes: Which URIs it takes, of hf, s3, gs, az, pvc, https and file.
        optional: Whether the field may be absent.
        secret: The field, or what else, that credentials belong in.
    """
    absent = f"!has(self.{field}) || " if optional else ""
    hints = [_HINTS[scheme] for scheme in schemes]
    return (
        Rule(
            field,
            f"{absent}self.{field}.matches(r'^({'|'.join(_FORMS[scheme] for scheme in schemes)})$')",
            f"{field} to be a URI that starts with {', '.join(hints[:-1])} or {hints[-1]}",
            ("a name on the hub becomes hf://ORG/NAME, " if "hf" in schemes else "")
            + "a local path becomes file:PATH, without ~",
        ),
        Rule(
            field,
            f"{absent}!self.{field}.matches(r'{_CREDENTIALS}')",
            f"{field} without credentials",
            f"take them out of the URI, renew them, and keep them in {secret}",
        ),
    )
