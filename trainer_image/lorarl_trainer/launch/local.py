"""Manifests for a cluster on one machine: `lorarl run` refuses some fields and reports the others as ignored."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import resource
from collections.abc import Iterable, Iterator
from pathlib import Path

from lorarl_api.v1alpha1 import SCHEDULING_PREFIXES, ClusterSpec, LoRARLJob, Model
from lorarl_trainer.devices.nvidia_smi import visible_gpus
from lorarl_trainer.errors import InputError
from lorarl_trainer.launch.engine_command import ENGINES, share_gpus
from lorarl_trainer.progress import read_summary

LOCK = "run.lock"
"""File in a run's folder that the run's process holds a lock on."""
_LEAST_FILE_BYTES = 1 << 30
"""Ray's own files, and the training state of a small adapter."""

_JOB_FIELDS = (
    *("backoff_limit", "retry_policy", "max_preemptions_without_progress"),
    *("active_deadline_seconds", "start_deadline_seconds", "progress_deadline_seconds", "ttl_seconds_after_finished"),
    *("template_ref", "publish"),
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
        return  # no run, or one that could not be read
    if other != job.name:
        got = f"{out_dir}, which has the run of the job {other}"
        raise InputError("--out", got, f"a folder for the job {job.name}", "Choose another one.")


@contextlib.contextmanager
def only_run_in(out_dir: Path) -> Iterator[None]:
    """Keep other runs out of a folder as long as this one runs. The lock ends with the process, however that ends.

    Raises:
        InputError: another process runs there.
    """
    with contextlib.ExitStack() as stack:
        try:
            out_dir.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context((out_dir / LOCK).open("a+", encoding="utf-8"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
        except BlockingIOError as error:
            lock.seek(0)
            got = f"{out_dir}, in which process {lock.read() or 'unknown'} makes a run"
            hint = "Wait until it ends, stop it, or choose another folder and another metadata.name."
            raise InputError("--out", got, "a folder without a running job", hint) from error
        except OSError:
            pass  # a file system without locks, or a folder that cannot be written: the run itself says so
        yield


def require_large_files() -> None:
    """Refuse to start where files must stay small: neither Ray nor a checkpoint could be written.

    Raises:
        InputError: it names the limit.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and limit < _LEAST_FILE_BYTES:
        expected = f"unlimited, or at least {_LEAST_FILE_BYTES:,} bytes"
        raise InputError("ulimit -f", f"{limit:,} bytes for one file", expected, "Raise it: ulimit -f unlimited.")


def require_places_of_engines(job: LoRARLJob) -> None:
    """Refuse separate engines that this machine has no GPUs for, or whose trainer is elsewhere.

    Where no GPU is known, as in a dry run on another machine, nothing is refused.

    Raises:
        InputError: it names the field.
    """
    if job.spec.separate_engines is None:
        return
    if "RAY_ADDRESS" in os.environ:
        got = f"engines on this machine, and workers at RAY_ADDRESS {os.environ['RAY_ADDRESS']}"
        hint = "Unset RAY_ADDRESS, or start servers of vLLM and name them in rollout.servers."
        raise InputError(ENGINES, got, "both on one machine", hint)
    if gpus := visible_gpus():
        share_gpus(job.spec, gpus)


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
        *(f"{field}.configMap" for field, source in job.spec.reward_sources.items() if source.config_map),
    ]


def _scheduler_keys(path: str, keys: Iterable[str]) -> Iterator[str]:
    return (f"{path}[{key}]" for key in sorted(keys) if key.startswith(SCHEDULING_PREFIXES))


def _not_default(path: str, part: Model, names: Iterable[str]) -> Iterator[str]:
    fields = type(part).model_fields
    for name in names:
        if getattr(part, name) != fields[name].get_default(call_default_factory=True, validated_data={}):
            yield f"{path}.{fields[name].alias or name}"
