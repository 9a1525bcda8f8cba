"""The JSON schema of templates: that of a job's parts, without what the API server would fill in or require."""

from __future__ import annotations

from functools import cache

from lorarl_api.schema import Schema, inlined_schema, job_schema
from lorarl_api.v1alpha1 import PARTS, TemplateSpec, fields_of

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


def _partial(schema: Schema) -> Schema:
    """A schema of which any part may be absent. Entries of lists stay whole: they are not merged."""
    partial = {key: value for key, value in schema.items() if key not in _OF_WHOLE_OBJECTS}
    if "properties" in partial:
        partial["properties"] = {name: _partial(inner) for name, inner in partial["properties"].items()}
    return partial
