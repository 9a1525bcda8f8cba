"""TensorBoard, Weights & Biases and MLflow. Each is imported and opened in its own thread when the run starts."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lorarl_api.v1alpha1 import MlflowSpec, TrackingSpec, WandbSpec
from lorarl_trainer.errors import InputError
from lorarl_trainer.progress.events import EvalDone, Event, RunFinished, RunStarted, StepDone, scalars_of
from lorarl_trainer.progress.fanout import CLOSE_SECONDS, Sink
from lorarl_trainer.progress.tensorboard_sink import TensorBoardSink

OPEN_SECONDS = 15.0
"""How long W&B may take to answer at the start of a run."""

RUN_FILE = "run.json"
"""Suffix of wandb-run.json and mlflow-run.json beside metrics.jsonl. Outside a cluster, a run that resumes finds its
tracker's run there. In a cluster, the job's uid names it."""
UID_TAG = "lorarl.job_uid"

type Secrets = Mapping[str, Mapping[str, str]]
"""The keys and values of each Secret, by the Secret's name."""


def trackers(tracking: TrackingSpec, secrets: Secrets, out_dir: Path, uid: str | None = None) -> list[Sink]:
    """Return a sink for TensorBoard and one for each tracker in spec.tracking.

    All attempts of a job in a cluster, which has a `uid`, are one run of a tracker.

    Raises:
        InputError: A package is not installed, or a Secret lacks its key.
    """
    sinks: list[Sink] = [TensorBoardSink(out_dir / "tensorboard")]
    if tracking.wandb is not None:
        _require_package("spec.tracking.wandb", "wandb", "wandb")
        key = _secret(
            "spec.tracking.wandb.credentialsSecret", tracking.wandb.credentials_secret, secrets, [["WANDB_API_KEY"]]
        )
        sinks.append(WandbSink(tracking.wandb, key.get("WANDB_API_KEY"), out_dir, uid))
    if tracking.mlflow is not None:
        _require_package("spec.tracking.mlflow", "mlflow", "mlflow-skinny")
        key_sets = [["MLFLOW_TRACKING_TOKEN"], ["MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"]]
        credentials = _secret(
            "spec.tracking.mlflow.credentialsSecret", tracking.mlflow.credentials_secret, secrets, key_sets
        )
        sinks.append(MlflowSink(tracking.mlflow, credentials, out_dir, uid))
    return sinks


class WandbSink:
    """Logs to a run at Weights & Biases. The environment variable WANDB_MODE=offline keeps it in the output folder."""

    name = "Weights & Biases (spec.tracking.wandb)"

    def __init__(self, spec: WandbSpec, api_key: str | None, out_dir: Path, uid: str | None = None) -> None:
        self._spec, self._api_key, self._out_dir, self._uid = spec, api_key, out_dir, uid
        self._run: Any = None
        self._exit_code = 1

    def on_event(self, event: Event) -> None:
        """Open the run when training starts; log the scalars of each step and evaluation."""
        match event:
            case RunStarted() if self._run is None:
                self._open(event)
            case StepDone() | EvalDone():
                self._run.log({"step": event.step, **scalars_of(event)})
            case RunFinished():
                self._exit_code = 0 if event.state == "succeeded" else 1
            case _:
                pass

    def close(self) -> None:
        """Send what is left, and wait until it has arrived."""
        if self._run is not None:
            import wandb

            self._run.finish(exit_code=self._exit_code)
            wandb.teardown()

    def _open(self, event: RunStarted) -> None:
        import wandb

        run_id = self._uid or _previous_run_id(self._out_dir, "wandb", event)
        self._run = wandb.init(
            project=self._spec.project,
            entity=self._spec.entity,
            name=event.job,
            id=run_id,
            resume="allow" if run_id else None,
            dir=str(self._out_dir),
            config=_parameters(event),
            # silent: W&B prints nothing and, above all, never asks for a key on the terminal.
            # Without the timeouts a server that is down delays the process for minutes, even at its exit.
            settings=wandb.Settings(
                api_key=self._api_key,
                silent=True,
                console="off",
                x_disable_meta=True,
                init_timeout=OPEN_SECONDS,
                finish_timeout=CLOSE_SECONDS,
            ),
        )
        # A resumed run logs some steps a second time, which W&B's own step counter refuses.
        self._run.define_metric("*", step_metric="step")
        _store_run_id(self._out_dir, "wandb", self._run.id)


class MlflowSink:
    """Logs to a run at an MLflow server or in a folder."""

    name = "MLflow (spec.tracking.mlflow)"

    def __init__(self, spec: MlflowSpec, credentials: Mapping[str, str], out_dir: Path, uid: str | None = None) -> None:
        self._spec, self._credentials, self._out_dir, self._uid = spec, credentials, out_dir, uid
        self._client: Any = None
        self._run_id = ""
        self._status = "FAILED"

    def on_event(self, event: Event) -> None:
        """Open the run when training starts; log the scalars of each step and evaluation."""
        match event:
            case RunStarted() if self._client is None:
                self._open(event)
            case StepDone() | EvalDone():
                from mlflow.entities import Metric

                now = time.time_ns() // 1_000_000
                metrics = [Metric(name, value, now, event.step) for name, value in scalars_of(event).items()]
                self._client.log_batch(self._run_id, metrics=metrics)
            case RunFinished():
                self._status = {"succeeded": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}[event.state]
            case _:
                pass

    def close(self) -> None:
        """Mark the run as ended."""
        if self._client is not None:
            self._client.set_terminated(self._run_id, self._status)

    def _open(self, event: RunStarted) -> None:
        # MLflow reads these from the environment at every request; a client does not accept them.
        os.environ.update(self._credentials)
        if self._spec.tracking_uri.startswith("file:"):
            os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient(tracking_uri=self._spec.tracking_uri)
        experiment = self._client.get_experiment_by_name(self._spec.experiment)
        experiment_id = (
            experiment.experiment_id if experiment else self._client.create_experiment(self._spec.experiment)
        )
        previous = self._run_of_uid(experiment_id) or _previous_run_id(self._out_dir, "mlflow", event)
        tags = {UID_TAG: self._uid} if self._uid else None
        self._run_id = previous or self._client.create_run(experiment_id, run_name=event.job, tags=tags).info.run_id
        if previous:
            self._client.update_run(self._run_id, status="RUNNING")
        else:
            self._client.log_batch(
                self._run_id, params=[Param(name, str(value)) for name, value in _parameters(event).items()]
            )
        _store_run_id(self._out_dir, "mlflow", self._run_id)

    def _run_of_uid(self, experiment_id: str) -> str | None:
        """Return the run that an earlier attempt of the job made."""
        if self._uid is None:
            return None
        found = self._client.search_runs([experiment_id], f"tags.`{UID_TAG}` = '{self._uid}'", max_results=1)
        return found[0].info.run_id if found else None


def _parameters(event: RunStarted) -> dict[str, Any]:
    adapter = event.adapter
    return {
        "job": event.job,
        "base_model": event.base_model,
        "algorithm": event.algorithm,
        "adapter_type": adapter.type,
        "rank": adapter.rank,
        "alpha": adapter.alpha,
        "trainable_parameters": adapter.trainable_parameters,
        "total_parameters": adapter.total_parameters,
        "total_steps": event.total_steps,
        "manifest_sha256": hashlib.sha256(event.manifest.encode()).hexdigest(),
    }


def _previous_run_id(out_dir: Path, tracker: str, event: RunStarted) -> str | None:
    """Return the id of the run to resume; None for a run from the start or in a new folder."""
    path = out_dir / f"{tracker}-{RUN_FILE}"
    if event.resumed_from_step is None or not path.exists():
        return None
    run_id: str = json.loads(path.read_text())["run_id"]
    return run_id


def _store_run_id(out_dir: Path, tracker: str, run_id: str) -> None:
    (out_dir / f"{tracker}-{RUN_FILE}").write_text(json.dumps({"run_id": run_id}) + "\n")


def _require_package(field: str, package: str, distribution: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise InputError(
            field,
            f"no package {package} in this installation",
            f"the package {package}",
            f"Install it: lorarl env add {distribution}.",
        )


def _secret(field: str, name: str | None, secrets: Secrets, key_sets: list[list[str]]) -> dict[str, str]:
    """Return the values of the first set of keys that the Secret has; nothing if the manifest names no Secret."""
    if name is None:
        return {}
    keys = secrets.get(name, {})
    for key_set in key_sets:
        if all(key in keys for key in key_set):
            return {key: keys[key] for key in key_set}
    wanted = ", or ".join(" and ".join(key_set) for key_set in key_sets)
    got = f"the Secret {name} with " + (", ".join(sorted(keys)) if keys else "no keys")
    raise InputError(field, got, f"a Secret with {wanted}", "Add the key to the Secret, or name another Secret.")
