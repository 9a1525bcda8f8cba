"""Manifests for a cluster on one machine: `lorarl run` refuses some fields and reports the others as ignored."""

from __future__ import annotations

import importlib.util
import os
import resource
from collections.abc import Iterable, Iterator
from pathlib import Path

from lorarl_api.v1alpha1 import SCHEDULING_PREFIXES, ClusterSpec, LoRARLJob, Model
from lorarl_trainer.errors import InputError
from lorarl_trainer.progress import read_summary

_LEAST_FILE_BYTES = 1 << 30
"""Ray's own files, and the training state of a small adapter."""

_JOB_FIELDS = (
    *("backoff_limit", "max_preemptions_without_progress"),
    *("active_deadline_seconds", "start_deadline_seconds", "progress_deadline_seconds", "ttl_seconds_after_finished"),
)
_CHECKPOINT_FIELDS = ("deletion_policy",)
_CLUSTER_FIELDS_HONOURED = ("nodes", "gpus_per_node")


def refuse_cluster_jobs(job: LoRARLJob) -> None:
    """Refuse fields that one machine cannot honour and that would change the run if they were ignored.

    Raises:
        InputError: it names the field.
    """
    if job.spec.suspend:
        raise InputError("spec.suspend", "true", "false for `lorarl run`", "Set it to false: --set spec.suspend=false.")
    if job.spec.cluster.nodes > 1:
        hint = "Use --set spec.cluster.nodes=1."
        raise InputError(
            "spec.cluster.nodes", str(job.spec.cluster.nodes), "1 for `lorarl run`, which uses only this machine", hint
        )


def require_own_folder(job: LoRARLJob, out_dir: Path) -> None:
    """Refuse a folder with the run of another job, whose metrics, samples and report would be overwritten.

    Raises:
        InputError: it names the folder and the job.
    """
    try:
        other = read_summary(out_dir)["job"]
    except (OSError, ValueError, KeyError):
        return  # no run, or one that nobody could look at
    if other != job.name:
        got = f"{out_dir}, which has the run of the job {other}"
        raise InputError("--out", got, f"a folder for the job {job.name}", "Choose another one.")


def require_large_files() -> None:
    """Refuse to start where files must stay small: neither Ray nor a checkpoint could be written.

    Raises:
        InputError: it names the limit.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and limit < _LEAST_FILE_BYTES:
        expected = f"unlimited, or at least {_LEAST_FILE_BYTES:,} bytes"
        raise InputError("ulimit -f", f"{limit:,} bytes for one file", expected, "Raise it: ulimit -f unlimited.")


def require_gpu_packages(job: LoRARLJob) -> None:
    """Refuse GPUs in an environment that was made for CPUs.

    Raises:
        InputError: the job asks for GPUs, and the packages for them are not installed.
    """
    gpus = job.spec.cluster.gpus_per_node
    elsewhere = "RAY_ADDRESS" in os.environ  # the workers have an environment of another machine
    if gpus and not elsewhere and importlib.util.find_spec("transformer_engine") is None:
        expected = "0 in this environment, which lacks the GPU packages"
        hint = "Install them with `make setup GPU=1`, or use --set spec.cluster.gpusPerNode=0."
        raise InputError("spec.cluster.gpusPerNode", str(gpus), expected, hint)


def ignored_fields(job: LoRARLJob) -> list[str]:
    """Return the fields that take effect only in a cluster. A field with its default is not listed."""
    cluster_fields = [name for name in ClusterSpec.model_fields if name not in _CLUSTER_FIELDS_HONOURED]
    return [
        *_scheduler_keys("metadata.labels", job.metadata.labels),
        *_scheduler_keys("metadata.annotations", job.metadata.annotations),
        *_not_default("spec.checkpoint", job.spec.checkpoint, _CHECKPOINT_FIELDS),
        *_not_default("spec.cluster", job.spec.cluster, cluster_fields),
        *_not_default("spec", job.spec, _JOB_FIELDS),
    ]


def _scheduler_keys(path: str, keys: Iterable[str]) -> Iterator[str]:
    return (f"{path}[{key}]" for key in sorted(keys) if key.startswith(SCHEDULING_PREFIXES))


def _not_default(path: str, part: Model, names: Iterable[str]) -> Iterator[str]:
    fields = type(part).model_fields
    for name in names:
        if getattr(part, name) != fields[name].get_default(call_default_factory=True, validated_data={}):
            yield f"{path}.{fields[name].alias or name}"
