"""Reads the template of a job before an attempt is created from it. An attempt that exists carries its own."""

from __future__ import annotations

from lorarl_api.templates import Template
from lorarl_api.v1alpha1 import CLUSTER_TEMPLATE_KIND, TemplateRef
from lorarl_operator.decide.models import Observed
from lorarl_operator.decide.templating import (
    against_policy,
    kept_template,
    needs_template,
    to_admit,
    wanted_template,
    with_template,
    without_template,
)
from lorarl_operator.kube.client import Client
from lorarl_operator.kube.errors import ApiError
from lorarl_operator.kube.resources import CLUSTER_TEMPLATES, LORARLJOBS, TEMPLATES


async def with_its_template(client: Client, observed: Observed, default: str) -> Observed:
    """What was observed, with the job as its template completes it, or with why it cannot be.

    `default`: Name of the ClusterLoRARLJobTemplate of jobs that name none; empty for none.

    Raises:
        ApiError: The API server did not answer.
    """
    exists, template = kept_template(observed)
    if exists:
        return with_template(observed, template) if template else observed
    wanted = wanted_template(observed.job, default)
    if wanted is None or not needs_template(observed):
        return observed
    answer = await _read(client, wanted, observed.job.namespace)
    if not isinstance(answer, Template):
        return without_template(observed, wanted, answer)
    return await _admitted(client, observed, with_template(observed, answer), answer)


async def _admitted(client: Client, observed: Observed, completed: Observed, template: Template) -> Observed:
    """The completed job; with the reason if the API server would not admit it as a job of a user."""
    patch = to_admit(observed, completed)
    if patch is None:
        return completed
    job = observed.job
    try:
        await client.try_merge(LORARLJOBS, job.namespace, job.name, patch)
    except ApiError as error:
        if error.refused:
            return against_policy(completed, str(template), error.message)
        if not error.conflict and not error.not_found:
            raise
    return completed


async def _read(client: Client, wanted: TemplateRef, namespace: str) -> Template | str:
    """The template, or why it is not available."""
    of_cluster = wanted.kind == CLUSTER_TEMPLATE_KIND
    try:
        if of_cluster:
            found = await client.get(CLUSTER_TEMPLATES, None, wanted.name)
        else:
            found = await client.get(TEMPLATES, namespace, wanted.name)
    except ApiError as error:
        if error.transient:
            raise
        return f"cannot be read ({error.message})"
    return Template(wanted.kind, wanted.name, found.get("spec") or {}) if found else "does not exist"
