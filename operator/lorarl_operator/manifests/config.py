"""The ConfigMap with the manifest that the trainer loads."""

from __future__ import annotations

import json
from typing import Any

from lorarl_api.defaults import explicit
from lorarl_api.v1alpha1 import API_VERSION, KIND
from lorarl_operator.decide.models import Job
from lorarl_operator.decide.names import access_name, metadata

CONFIG_KEY = "job.yaml"
CONFIG_FOLDER = "/etc/lorarl/job"
SECRETS_FOLDER = "/etc/lorarl/secrets"


def manifest(job: Job) -> dict[str, Any]:
    """The job as the trainer reads it: without status, and with only the metadata that the trainer needs.

    Fields that have their default are left out. A trainer image may be older than the CRD, and not know some of them.
    The values of a template are in it, so its name is left out too.
    """
    spec = explicit(job.read_spec())
    spec.pop("templateRef", None)
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": job.name, "namespace": job.namespace, "uid": job.uid},
        "spec": spec,
    }


def config_map(job: Job) -> dict[str, Any]:
    """The ConfigMap. JSON is also YAML; sorted keys give the same text for the same spec."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(job, access_name(job.name)),
        "data": {CONFIG_KEY: json.dumps(manifest(job), indent=1, sort_keys=True)},
    }
