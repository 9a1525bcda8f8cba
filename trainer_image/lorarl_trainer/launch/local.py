"""What one machine makes of a manifest that asks for a cluster: `lorarl run` refuses some of it and names the rest as ignored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lorarl_api.v1alpha1 import SCHEDULING_PREFIXES, ClusterSpec, LoRARLJob, Model
from lorarl_trainer.errors import InputError

_OF_THE_JOB = ("backoff_limit", "active_deadline_seconds", "start_deadline_seconds", "ttl_seconds_after_finished")
_OF_THE_CHECKPOINTS = ("deletion_policy",)
_HONOURED_OF_THE_CLUSTER = ("nodes", "gpus_per_node")


def refuse_cluster_jobs(job: LoRARLJob) -> None:
    """Refuse what one machine cannot honour, and what would be another run without it.

    Raises:
        InputError: naming the field.
    """
    if job.spec.suspend:
        raise InputError("spec.suspend", "true", "false for `lorarl run`", "Set it to false: --set spec.suspend=false.")
    if job.spec.cluster.nodes > 1:
        hint = "Use --set spec.cluster.nodes=1."
        raise InputError(
            "spec.cluster.nodes", str(job.spec.cluster.nodes), "1 for `lorarl run`, which has this machine alone", hint
        )


def ignored_fields(job: LoRARLJob) -> list[str]:
    """Return the fields that ask for something which only a cluster has. A field with its default asks for nothing."""
    of_the_cluster = [name for name in ClusterSpec.model_fields if name not in _HONOURED_OF_THE_CLUSTER]
    return [
        *_of_schedulers("metadata.labels", job.metadata.labels),
        *_of_schedulers("metadata.annotations", job.metadata.annotations),
        *_not_default("spec.checkpoint", job.spec.checkpoint, _OF_THE_CHECKPOINTS),
        *_not_default("spec.cluster", job.spec.cluster, of_the_cluster),
        *_not_default("spec", job.spec, _OF_THE_JOB),
    ]


def _of_schedulers(path: str, keys: Iterable[str]) -> Iterator[str]:
    return (f"{path}[{key}]" for key in sorted(keys) if key.startswith(SCHEDULING_PREFIXES))


def _not_default(path: str, part: Model, names: Iterable[str]) -> Iterator[str]:
    fields = type(part).model_fields
    for name in names:
        if getattr(part, name) != fields[name].get_default(call_default_factory=True, validated_data={}):
            yield f"{path}.{fields[name].alias or name}"
