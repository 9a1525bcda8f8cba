"""The ConfigMap with the manifest that the trainer loads, and what is read out of a spec."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from lorarl_api.v1alpha1 import API_VERSION, KIND
from lorarl_operator.names import access_name, metadata
from lorarl_operator.objects import Job

CONFIG_KEY = "job.yaml"
CONFIG_FOLDER = "/etc/lorarl/job"
SECRETS_FOLDER = "/etc/lorarl/secrets"


def manifest(job: Job) -> dict[str, Any]:
    """The job as the trainer reads it: without status, and of its metadata what the trainer needs."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": job.name, "namespace": job.namespace, "uid": job.uid},
        "spec": job.read_spec(),
    }


def config_map(job: Job) -> dict[str, Any]:
    """The ConfigMap. JSON is YAML too; sorted, so that the same spec is the same text."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(job, access_name(job.name)),
        "data": {CONFIG_KEY: json.dumps(manifest(job), indent=1, sort_keys=True)},
    }


def secret_names(spec: Any) -> list[str]:
    """Names of the Secrets that a spec refers to in its fields `credentialsSecret`, each once."""
    return sorted(set(_secret_names(spec)))


def _secret_names(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "credentialsSecret" and isinstance(inner, str):
                yield inner
            elif key != "podTemplateOverrides":
                yield from _secret_names(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _secret_names(inner)
