"""A job's manifest as its template completes it, also that of a schedule's next job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lorarl_api.faults import Fault, ManifestError
from lorarl_api.load import assign, faults, job_of, load_job
from lorarl_api.pod_overrides import override_faults
from lorarl_api.schedules.cron import times_of
from lorarl_api.schedules.manifest import checked_schedule, job_document, job_name
from lorarl_api.templates import Template, merged_keys, merged_spec, reference, require_unlocked, template_of
from lorarl_api.v1alpha1 import CLUSTER_TEMPLATE_KIND, KIND, SCHEDULE_KIND, TEMPLATE_KIND
from lorarl_api.yaml_reader import read_documents
from lorarl_api.yaml_writer import to_yaml


def render(manifest: Path, template: Path | None = None, overrides: Sequence[str] = ()) -> str:
    """The manifest of a job with the values of its template, as YAML.

    Args:
        manifest: The job's file, or that of a schedule, whose next job is meant. It may have the template too.
        template: A file with one template, which the job need not name; None for the one that it names.
        overrides: Assignments such as `spec.trainer.steps=5`, applied first.

    Raises:
        ManifestError: Job, schedule or template is not valid, the template is not there, or the job sets what it locks.
    """
    everything = [one for one in read_documents(manifest) if isinstance(one, dict)]
    kinds = [one.get("kind") for one in everything]
    if KIND not in kinds and SCHEDULE_KIND in kinds:
        if (count := kinds.count(SCHEDULE_KIND)) > 1:
            hint = "Put each schedule into its own file."
            raise ManifestError([Fault("the manifest", f"{count} {SCHEDULE_KIND} objects", "one", hint)])
        job = _next_job(everything[kinds.index(SCHEDULE_KIND)], overrides)
    else:
        load_job(manifest, overrides)
        job = everything[kinds.index(KIND)]
        assign(job, overrides)
    if (found := _template(job, everything, template)) is not None:
        job = _completed(job, found)
    if broken := override_faults(job_of(job)):
        raise ManifestError(broken)
    return to_yaml(job)


def _next_job(schedule: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The next job of a schedule, which continues from the adapter that its status names."""
    assign(schedule, overrides)
    spec = checked_schedule(schedule).spec
    name = schedule["metadata"]["name"]
    upcoming = times_of(spec.schedule, spec.time_zone).after(datetime.now(UTC))
    adapter = (schedule.get("status") or {}).get("lastAdapter") or {}
    start_from = None if spec.continue_from == "none" else adapter.get("uri")
    job = job_document(schedule["spec"]["template"]["spec"], job_name(name, upcoming or datetime.now(UTC)), start_from)
    about = {key: value for key, value in (schedule["spec"]["template"].get("metadata") or {}).items() if value}
    return {**job, "metadata": {**job["metadata"], **about}}


def _completed(job: dict[str, Any], template: Template) -> dict[str, Any]:
    about, spec = job["metadata"], job["spec"]
    labels, annotations = about.get("labels") or {}, about.get("annotations") or {}
    require_unlocked(spec, labels, annotations, template)
    keys = {
        "labels": merged_keys(labels, template.spec.get("labels")),
        "annotations": merged_keys(annotations, template.spec.get("annotations")),
    }
    spec = {key: value for key, value in merged_spec(spec, template).items() if key != "templateRef" and value != {}}
    completed = {**job, "metadata": {**about, **{key: value for key, value in keys.items() if value}}, "spec": spec}
    if broken := faults(completed):
        raise ManifestError(broken)
    return completed


def _template(job: dict[str, Any], beside: Sequence[dict[str, Any]], file: Path | None) -> Template | None:
    """The template of a job: the only one in `file`, or the one that the job names."""
    kinds = (TEMPLATE_KIND, CLUSTER_TEMPLATE_KIND)
    there = [one for one in (read_documents(file) if file else beside) if isinstance(one, dict)]
    templates = [template_of(one) for one in there if one.get("kind") in kinds]
    named = reference(job["spec"])
    if named:
        templates = [one for one in templates if (one.kind, one.name) == (named.kind, named.name)]
    elif file is None:
        return None
    if len(templates) == 1:
        return templates[0]
    wanted = f"{named.kind} {named.name}" if named else f"one {TEMPLATE_KIND} or {CLUSTER_TEMPLATE_KIND}"
    where = "--template" if file else "spec.templateRef"
    hint = "Save it with `kubectl get KIND NAME -o yaml > template.yaml`, and add --template template.yaml."
    raise ManifestError([Fault(where, f"{len(templates)} such templates", wanted, hint)])
