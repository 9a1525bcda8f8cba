"""A job as its template completes it. Pure.

A RayJob carries the template that it was created with. So a later change of the template changes no attempt that
exists, and the next attempt has it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, cast

from lorarl_api.faults import ManifestError
from lorarl_api.templates import Template, merged_keys, merged_spec, reference, require_unlocked
from lorarl_api.v1alpha1 import CLUSTER_TEMPLATE_KIND, PARTS, TemplateRef
from lorarl_operator.decide.messages import sentences
from lorarl_operator.decide.models import Job, Observed, TemplateFault
from lorarl_operator.decide.names import attempt_of
from lorarl_operator.decide.parse import passed
from lorarl_operator.decide.reasons import Waiting
from lorarl_operator.decide.status import FINISHED, PENDING, RESTARTING, SUSPENDED, SUSPENDING
from lorarl_operator.decide.valid_spec import checked_spec


def wanted_template(job: Job, default: str) -> TemplateRef | None:
    """The template that the job names, or else the installation's default; None without either."""
    if b'"templateRef"' not in job.spec and not default:
        return None
    named = reference(job.read_spec())
    return named or reference({"templateRef": {"kind": CLUSTER_TEMPLATE_KIND, "name": default}})


def needs_template(observed: Observed) -> bool:
    """Whether a new attempt or a clean-up may follow, for which the template is read."""
    status = observed.job.read_status()
    return bool(observed.job.deleted_at) or status.get("phase") not in FINISHED


def kept_template(observed: Observed) -> tuple[bool, Template | None]:
    """Whether an attempt exists, and the template that the newest one was created with."""
    job = observed.job
    ours = [each for each in observed.ray_jobs if each.owner_uid == job.uid]
    if not ours:
        return False, None
    newest = max(ours, key=lambda each: attempt_of(job.name, each.name))
    return True, _read(newest.template)


def with_template(observed: Observed, template: Template) -> Observed:
    """What was observed, with the template's values in the job; or with why it cannot have them."""
    job, spec = observed.job, observed.job.read_spec()
    labels, annotations = dict(job.passed_labels), dict(job.passed_annotations)
    template = _without_image(template, job, spec)
    try:
        require_unlocked(spec, labels, annotations, template)
        merged = merged_spec(spec, template)
    except ManifestError as error:
        return replace(observed, template_fault=TemplateFault(Waiting.TEMPLATE_FORBIDS, str(error)))
    completed = replace(
        job,
        spec=_compact(merged),
        passed_labels=passed(merged_keys(labels, template.spec.get("labels"))),
        passed_annotations=passed(merged_keys(annotations, template.spec.get("annotations"))),
        template=_compact({"kind": template.kind, "name": template.name, "spec": template.spec}).decode(),
    )
    return replace(observed, job=completed)


def without_template(observed: Observed, wanted: TemplateRef, why: str) -> Observed:
    """What was observed, with the reason why the template is not available."""
    hint = "Create it, or correct spec.templateRef."
    if wanted.kind == CLUSTER_TEMPLATE_KIND:
        hint += " An operator that serves a list of namespaces reads only templates of the kind LoRARLJobTemplate."
    message = f"{wanted.kind} {wanted.name} {why}. {hint}"
    return replace(observed, template_fault=TemplateFault(Waiting.TEMPLATE_MISSING, message))


def to_admit(observed: Observed, completed: Observed) -> dict[str, Any] | None:
    """The patch that would put the template's values into the job itself; None if no attempt may follow.

    The API server's policies see only what users apply, and what a job takes from a template must obey them too.
    """
    job = observed.job
    # In other phases the API server lets nothing change, and no attempt is created.
    idle = job.read_status().get("phase", PENDING) in (PENDING, RESTARTING, SUSPENDING, SUSPENDED)
    if job.deleted_at or not idle or completed.template_fault or not _is_valid(completed.job):
        return None
    parts = {part: value for part, value in completed.job.read_spec().items() if part in PARTS}
    keys = {"labels": dict(completed.job.passed_labels), "annotations": dict(completed.job.passed_annotations)}
    return {"metadata": keys | {"uid": job.uid}, "spec": parts}


def against_policy(completed: Observed, template: str, refusal: str) -> Observed:
    """What was observed, with the refusal of a policy. `template` names its kind and name."""
    message = f"The job with the values of {template} is refused: {refusal.split('denied request: ')[-1]}"
    hint = "Correct the template, or name another in spec.templateRef."
    return replace(completed, template_fault=TemplateFault(Waiting.TEMPLATE_BREAKS_POLICY, sentences(message, hint)))


def _is_valid(job: Job) -> bool:
    try:
        checked_spec(job)
    except ManifestError:
        return False
    return True


def _without_image(template: Template, job: Job, spec: dict[str, Any]) -> Template:
    """The template for a job that keeps the trainer image which it began with."""
    cluster = template.spec.get("cluster") or {}
    own = spec.get("cluster")
    names_own = isinstance(own, dict) and own.get("image")
    if "image" not in cluster or names_own or not job.read_status().get("trainerImage"):
        return template
    return replace(template, spec=template.spec | {"cluster": {k: v for k, v in cluster.items() if k != "image"}})


def _read(text: str) -> Template | None:
    value = json.loads(text) if text else None
    return Template(value["kind"], value["name"], cast("dict[str, Any]", value["spec"])) if value else None


def _compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
