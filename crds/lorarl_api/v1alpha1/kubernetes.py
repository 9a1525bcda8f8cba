"""Kubernetes' own types: names, labels and quantities."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from lorarl_api.rules import Rule

_LABEL_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_CPU_QUANTITY = r"[1-9][0-9]{0,5}|[0-9]{1,6}[.][0-9]{1,3}|[1-9][0-9]{0,8}m"
QUALIFIED_NAME = rf"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?{_LABEL_NAME}"

LabelValue = Annotated[
    str,
    Field(
        max_length=63,
        pattern=r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$",
        examples=["h200"],
        json_schema_extra={
            "expected": "a label value: at most 63 letters, digits, dots, dashes and underscores, "
            "with a letter or digit at both ends"
        },
    ),
]
AnnotationValue = Annotated[str, Field(max_length=4096, examples=["arn:aws:iam::123456789012:role/trainer"])]
EnvironmentValue = Annotated[str, Field(max_length=4096, examples=["http://proxy.example.com:3128"])]
QualifiedName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=317,
        pattern=rf"^{QUALIFIED_NAME}$",
        json_schema_extra={"expected": "a qualified Kubernetes name, such as nvidia.com/gpu"},
    ),
]


Image = Annotated[
    str,
    Field(
        min_length=1,
        max_length=1024,
        pattern=r"^[^\s@]+(@sha256:[0-9a-f]{64})?$",
        json_schema_extra={"expected": "an image such as registry.example.com/lorarl/trainer:0.1.0, without spaces"},
    ),
]
ResourceName = Annotated[
    str,
    Field(
        max_length=317,
        pattern=rf"^({QUALIFIED_NAME})?$",
        json_schema_extra={"expected": 'a qualified Kubernetes name, such as nvidia.com/gpu, or "" for none'},
    ),
]


def _whole_cpus(value: Any) -> Any:
    """Kubernetes reads cpu: 8 as "8"."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Cpus = Annotated[
    str,
    BeforeValidator(_whole_cpus, json_schema_input_type=str),
    Field(
        min_length=1,
        max_length=16,
        examples=["8"],
        json_schema_extra={
            "expected": 'a Kubernetes CPU quantity: 8, "1.5" or 500m',
            "x-kubernetes-int-or-string": True,
            "minimum": 1,  # for a number without quotes
            "maximum": 999_999,
        },
    ),
]
"""A CPU quantity.

A whole number needs no quotes. The API server ignores the pattern of such a field; `cpu_rule` checks it.
"""
Bytes = Annotated[
    str,
    Field(
        min_length=2,
        max_length=24,
        pattern=r"^[1-9][0-9]{0,14}([.][0-9]{1,3})?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)$",
        examples=["64Gi"],
        json_schema_extra={"expected": "a memory quantity with a unit, such as 512Mi or 64Gi"},
    ),
]
"""A memory quantity. The unit is required: 64 without a unit would be 64 bytes."""


def cpu_rule(field: str, *, optional: bool = False) -> Rule:
    """A field is a CPU quantity."""
    absent = f"!has(self.{field}) || " if optional else ""
    return Rule(
        field,
        f"{absent}type(self.{field}) == int || self.{field}.matches(r'^({_CPU_QUANTITY})$')",
        "be a Kubernetes CPU quantity of at most 999999",
        'Write a quantity such as 8, "1.5" or 500m.',
    )


def label_keys(field: str, kind: str) -> Rule:
    """A mapping has keys of labels or annotations."""
    return Rule(
        field,
        f"self.{field}.all(key, key.matches(r'^{QUALIFIED_NAME}$') && size(key) <= 317)",
        f"have valid keys of Kubernetes {kind}: [PREFIX/]NAME, of letters, digits, dots, dashes and underscores",
        "Write a key such as example.com/name.",
    )
