"""What a start resumes from, what has changed since the last one, and what the next one will do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lorarl_api.faults import ManifestError
from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import LoRARLJob, LoRARLJobSpec
from lorarl_trainer.checkpoint.contents import ADAPTER_METADATA
from lorarl_trainer.checkpoint.identity import FINGERPRINT, differences, training_identity
from lorarl_trainer.checkpoint.latest import Latest
from lorarl_trainer.checkpoint.reader import CheckpointReader, Found
from lorarl_trainer.errors import LorarlError
from lorarl_trainer.progress import SUMMARY, read_summary
from lorarl_trainer.progress.settings import flat
from lorarl_trainer.rewards.source import fetched_sources
from lorarl_trainer.storage import RetryPolicy, open_store
from lorarl_trainer.storage.base_model import fetch_base_model, is_remote
from lorarl_trainer.storage.secrets import Secrets, secret_of

STARTS = "starts"
"""Folder in a run's folder with the manifest of each start."""
_LOOK = RetryPolicy(read_deadline_seconds=3.0, request_seconds=3.0)
"""How long a run that has ended looks into the store."""


def newest_checkpoint(job: LoRARLJob, secrets: Secrets, unpublished: Path) -> Found | None:
    """Return the checkpoint that the next start finds, with the adapter's metadata alone; None if there is none.

    Raises:
        LorarlError: the store does not answer.
    """
    return _survey(job, secrets, unpublished)[1]


def _survey(job: LoRARLJob, secrets: Secrets, unpublished: Path) -> tuple[Latest | None, Found | None]:
    if job.spec.checkpoint.resume == "Never":
        return None, None
    secret = secret_of(secrets, job.spec.checkpoint.credentials_secret)
    store = open_store(job.spec.checkpoint.uri, secret, field="spec.checkpoint.uri", retries=_LOOK)
    latest, found, _ = CheckpointReader(store, job.name, {}).survey([unpublished], files=[ADAPTER_METADATA])
    return latest, found


def what_next(job: LoRARLJob, secrets: Secrets, unpublished: Path) -> str:
    """Return what the same command will do, by what is in the store now."""
    try:
        newest = newest_checkpoint(job, secrets, unpublished)
    except LorarlError:
        return "checkpoints that are published stay, and the same command resumes from the newest one"
    if newest:
        return f"the same command resumes from the newest checkpoint, {newest.uri}"
    if job.spec.checkpoint.resume == "Never":
        return "the same command starts from the beginning, because spec.checkpoint.resume is Never"
    return "no checkpoint is published yet, so the same command starts from the beginning"


def beyond_last_step(steps: int, resumed: int) -> list[str]:
    """Return a warning if a run continues after the job's last step: the adapter is of more steps than it asks for."""
    if resumed <= steps:
        return []
    return [
        f"spec.trainer.steps is {steps}, and the newest checkpoint is of step {resumed}: there is nothing left to "
        f"train; the adapter is from step {resumed}. To train {steps} steps only, use another metadata.name. Earlier "
        "checkpoints that are kept are beside the newest one."
    ]


def left_unfinished(spec: LoRARLJobSpec, positions: Sequence[int]) -> list[str]:
    """Return a warning if rows were taken whose answers had not ended, and nothing answers them now.

    `positions`: see `DriverState.unfinished`.
    """
    if spec.rollout.partial is not None or not positions:
        return []
    return [
        f"spec.rollout.partial is no longer set, and the answers to {len(positions)} rows of spec.data.train had not "
        "ended. These rows are left out until the next epoch. To train on them now, stop the run before its next "
        "checkpoint and set spec.rollout.partial again."
    ]


def finished_adapter(
    job: LoRARLJob, secrets: Secrets, out_dir: Path, unpublished: Path, *, without_files: bool = False
) -> str | None:
    """Return the URI of the last adapter if this very training has made all its steps; None if a start is needed.

    The store decides: its newest checkpoint is of the last step, and of the same training, weights of a base model on
    this machine included. The last start here must have succeeded. What has changed since could only be trained with
    in further steps.

    `unpublished`: the folder of checkpoints that could not be published. `without_files`: whether a folder without a
    run counts too. The store must then say that the run ended.
    """
    try:
        known = (out_dir / SUMMARY).exists()
        if not (_succeeded(job, read_summary(out_dir)) if known else without_files):
            return None
        latest, newest = _survey(job, secrets, unpublished)
        if newest is None:
            return None
        left = job.spec.trainer.steps - newest.checkpoint.step
        # Without files, and after more steps than that, the next start says that steps were lowered.
        over = left <= 0 if known else left == 0 and latest is not None and latest.finished_at is not None
        return f"{newest.uri}/lora_adapter" if over and _same_training(job, secrets, newest) else None
    except (OSError, ValueError, KeyError, LorarlError):
        return None


def _succeeded(job: LoRARLJob, summary: Mapping[str, Any]) -> bool:
    """Return whether the last start in this folder made all steps of this job."""
    made = (summary["job"], summary["state"], summary["step"])
    return made == (job.name, "succeeded", job.spec.trainer.steps)


def _same_training(job: LoRARLJob, secrets: Secrets, newest: Found) -> bool:
    """Return whether a checkpoint is of this training. Weights of a base model elsewhere are taken for the same."""
    with fetched_sources(job.spec, secrets) as (spec, _):
        was = newest.manifest.identity
        weights = str(was.get(FINGERPRINT)) if is_remote(spec) else fetch_base_model(spec, secrets).fingerprint
        return not differences(was, training_identity(spec, weights))


def keep_manifest(out_dir: Path, manifest: str, resumed_from_step: int | None) -> None:
    """Keep the manifest of a start: starts/0002-after-step-5.yaml is that of the second one."""
    folder = out_dir / STARTS
    folder.mkdir(parents=True, exist_ok=True)
    number = len(list(folder.glob("*.yaml"))) + 1
    (folder / f"{number:04}-after-step-{resumed_from_step or 0}.yaml").write_text(manifest, encoding="utf-8")


def changes_since_last_start(out_dir: Path, job: LoRARLJob) -> list[str]:
    """Return each field that the last start of this run had otherwise: `trainer.learningRate 2e-05 -> 0.0001`.

    Empty if no earlier start is known here, as in another pod, or if its manifest can no longer be read.
    """
    manifests = sorted((out_dir / STARTS).glob("*.yaml"))
    try:
        before = load_job(manifests[-1]) if manifests else None
    except ManifestError:
        return []
    return changes(before, job) if before else []


def changes(before: LoRARLJob, now: LoRARLJob) -> list[str]:
    """Return the fields of spec that differ, defaults included, as `path before -> now`."""
    was, is_now = (flat(job.spec.model_dump(by_alias=True, mode="json")) for job in (before, now))
    return [
        f"{path} {_shown(was.get(path))} -> {_shown(is_now.get(path))}"
        for path in dict.fromkeys([*was, *is_now])
        if was.get(path) != is_now.get(path)
    ]


def _shown(value: Any) -> str:
    if value is None or value in ([], {}):
        return "unset"
    return f"{value:g}" if isinstance(value, float) else str(value)
