"""The JSON schemas of kinds that have parts of a job: templates, sweeps and schedules."""

from __future__ import annotations

from functools import cache

from lorarl_api.schema import Schema, inlined_schema, job_schema
from lorarl_api.v1alpha1 import (
    KIND,
    PARTS,
    SCHEDULE_KIND,
    SWEEP_KIND,
    LoRARLSchedule,
    LoRARLSweep,
    TemplateSpec,
    fields_of,
)

_OF_WHOLE_OBJECTS = ("default", "required", "x-kubernetes-validations")


@cache
def template_spec_schema() -> Schema:
    """The schema of a template's `spec`. Rules are left to the job that results."""
    schema = inlined_schema(TemplateSpec)
    parts = job_schema()["properties"]["spec"]["properties"]
    for name in PARTS:
        whole = _partial(parts[name])
        whole["properties"] = {field: whole["properties"][field] for field in fields_of(name)}
        schema["properties"][name] = whole | {"description": schema["properties"][name]["description"]}
    return schema


@cache
def sweep_schema() -> Schema:
    """The schema of a sweep. Its template may lack what its trials set. The CRD of jobs describes the fields."""
    schema = inlined_schema(LoRARLSweep)
    template = schema["properties"]["spec"]["properties"]["template"]["properties"]
    bare = _without_words(_partial(job_schema()["properties"]["spec"]))
    template["spec"] = bare | {"description": template["spec"]["description"]}
    return schema


@cache
def schedule_schema() -> Schema:
    """The schema of a schedule, whose template has all rules of a job but those about changes: it may change."""
    schema = inlined_schema(LoRARLSchedule)
    template = schema["properties"]["spec"]["properties"]["template"]["properties"]
    template["spec"] = _may_change(_without_words(template["spec"])) | {"description": template["spec"]["description"]}
    return schema


def spec_schema(kind: str) -> Schema:
    """The schema of `spec` of a kind that is, or makes, jobs."""
    whole = {KIND: job_schema, SWEEP_KIND: sweep_schema, SCHEDULE_KIND: schedule_schema}[kind]()
    spec: Schema = whole["properties"]["spec"]
    return spec


def _may_change(schema: Schema) -> Schema:
    """A schema without its rules that compare an object with what it was before."""
    free = dict(schema)
    if rules := free.pop("x-kubernetes-validations", None):
        kept = [rule for rule in rules if "oldSelf" not in rule["rule"]]
        free |= {"x-kubernetes-validations": kept} if kept else {}
    if "properties" in free:
        free["properties"] = {name: _may_change(inner) for name, inner in free["properties"].items()}
    return free | {
        key: _may_change(free[key]) for key in ("items", "additionalProperties") if isinstance(free.get(key), dict)
    }


def _without_words(schema: Schema) -> Schema:
    """A schema without its descriptions, and without those of all fields within it. Messages need its other words."""
    bare = {key: value for key, value in schema.items() if key != "description"}
    if "properties" in bare:
        bare["properties"] = {name: _without_words(inner) for name, inner in bare["properties"].items()}
    return bare | {
        key: _without_words(bare[key]) for key in ("items", "additionalProperties") if isinstance(bare.get(key), dict)
    }


def _partial(schema: Schema) -> Schema:
    """A schema of which any part may be absent. Entries of lists stay whole: they are not merged."""
    partial = {key: value for key, value in schema.items() if key not in _OF_WHOLE_OBJECTS}
    if "properties" in partial:
        partial["properties"] = {name: _partial(inner) for name, inner in partial["properties"].items()}
    return partial
