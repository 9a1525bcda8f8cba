"""Writes progress to the API server: the newest status. Training never waits for it.

Steps alone are written every five seconds at most, because thousands of jobs may have short ones. What users and the
operator wait for (the start, evaluations, checkpoints, the end) is written within a second.

It uses server-side apply under its own field manager, so the operator's part of the status is never touched. While the
API server is unreachable, training continues; afterwards the newest status is written.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from lorarl_api.v1alpha1 import API_VERSION, GROUP, KIND, VERSION, LoRARLJob
from lorarl_trainer.pods.own_cluster import own_cluster
from lorarl_trainer.pods.status import RunStatus, failure, kept_before_start
from lorarl_trainer.progress import Event, StepDone

FIELD_MANAGER = "lorarl-trainer"
MIN_SECONDS = 1.0
"""Minimum time between two writes."""
STEP_SECONDS = 5.0
"""Minimum time between two writes if nothing but steps has happened."""
ASK_SECONDS = 1.0
"""How long the training waits for an answer about drains."""
MAX_PAUSE_SECONDS = 30.0
"""Maximum time between two attempts while the API server does not answer."""
REQUEST_SECONDS = 10.0
LAST_SECONDS = 15.0
"""How long the end of a run waits for its last status: less than a pod's grace period."""
_GONE = (401, 404)
"""The API server's answers when the job, or its pods' account, was deleted: no status can be written any more."""
_GONE_ANSWERS = 2
"""This many such answers in a row, a second apart, end the wait for the last status."""

_ASTRAL = re.compile("[\U00010000-\U0010ffff]")


class StatusSink:
    """Writes the trainer's part of the status of one LoRARLJob."""

    name = "the job's status"

    def __init__(self, job: LoRARLJob, attempt: int) -> None:
        """`attempt` is the number that the operator gave this start of the job.

        Nothing is sent before the first event.
        """
        self._status = RunStatus(job, attempt)
        self._target = _Target({"name": job.name, "namespace": job.metadata.namespace, "uid": job.uid})
        self._changed = threading.Condition()
        self._unsent = self._urgent = self._closing = False
        self._last_error = "no answer"
        self._thread: threading.Thread | None = None

    def on_event(self, event: Event) -> None:
        """Apply one event. The status is sent soon."""
        with self._changed:
            self._status.on_event(event)
            self._unsent = True
            self._urgent = self._urgent or not isinstance(event, StepDone)
            self._changed.notify_all()
        if self._thread is None:
            # A daemon thread: an API server that hangs must not keep the process from ending.
            self._thread = threading.Thread(target=self._run, name="job-status", daemon=True)
            self._thread.start()

    def waiting_drain(self) -> str:
        """Return since when a drain has waited for a checkpoint (`status.drain`); empty if none does.

        Raises:
            Exception: the API server does not say so soon.
        """
        drain = self._target.read(ASK_SECONDS).get("drain") or {}
        return "" if drain.get("released") else str(drain.get("since") or "")

    def close(self) -> None:
        """Send the last status.

        Raises:
            TimeoutError: the API server did not accept it in time.
            LookupError: the job, or its pods' account, is gone.
        """
        if self._thread is None:
            return
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(LAST_SECONDS)
        if self._thread.is_alive():
            raise TimeoutError(
                f"the API server did not accept the last status within {LAST_SECONDS:g} s: {self._last_error}"
            )
        if self._unsent:
            raise LookupError(
                f"the job, or its pods' account, is gone, so its last status was not written: {self._last_error}"
            )

    def _run(self) -> None:
        pause, gone = MIN_SECONDS, 0
        while self._wait_for_changes() and gone < _GONE_ANSWERS:
            try:
                self._send()
                pause, gone = MIN_SECONDS, 0
            except Exception as error:  # noqa: BLE001 - training continues whatever keeps the status from being written
                self._last_error = " ".join(str(error).split())[:500]
                self._unsent = self._urgent = True
                gone = gone + 1 if self._closing and getattr(error, "status", None) in _GONE else 0
                pause = MIN_SECONDS if self._closing else min(MAX_PAUSE_SECONDS, 2 * pause)
            self._pause(pause)
            self._wait_between_steps()

    def _wait_for_changes(self) -> bool:
        """Wait for something to send. Returns False if the run is over and everything is sent."""
        with self._changed:
            self._changed.wait_for(lambda: self._unsent or self._closing)
            return self._unsent

    def _pause(self, seconds: float) -> None:
        """Wait before the next write. The end of the run shortens a long pause."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._closing, seconds):
                return
            if self._unsent:
                self._changed.wait(MIN_SECONDS / 2)

    def _wait_between_steps(self) -> None:
        """Wait longer while there is nothing but steps to send."""
        with self._changed:
            self._changed.wait_for(lambda: self._urgent or self._closing, STEP_SECONDS - MIN_SECONDS)

    def _send(self) -> None:
        before = self._target.before()
        with self._changed:
            status, self._unsent, self._urgent = self._status.as_dict(before), False, False
        self._target.apply(status)


def report_failure(manifest: Path, attempt: int, reason: str, message: str) -> None:
    """Report that a run cannot even begin: without a reason, the operator would start it again and again.

    `manifest`: the mounted manifest. Of this, only the metadata must be readable. `attempt`: the number that the
    operator gave this start of the job.
    """
    target = _Target(yaml.safe_load(manifest.read_bytes())["metadata"])
    found = failure(reason, message, attempt, datetime.now(UTC))
    target.apply(kept_before_start(target.before()) | {"failure": found})


def readable(status: dict[str, Any]) -> dict[str, Any]:
    """Return the status without characters beyond U+FFFF, such as emojis.

    The official client escapes them as surrogate pairs, as JSON does. The API server reads an apply as YAML, which has
    no such escapes, and refuses it.
    """
    kept: dict[str, Any] = json.loads(_ASTRAL.sub("\N{REPLACEMENT CHARACTER}", json.dumps(status, ensure_ascii=False)))
    return kept


class _Target:
    """The LoRARLJob's status on the API server of this pod's cluster, or of the cluster that KUBECONFIG names."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        """`metadata` has the job's name, namespace and uid."""
        configuration = own_cluster()
        from kubernetes.client import ApiClient, CustomObjectsApi

        self._api = CustomObjectsApi(ApiClient(configuration))
        self._metadata = {"name": metadata["name"], "namespace": metadata.get("namespace") or "default"}
        if metadata.get("uid"):
            self._metadata["uid"] = metadata["uid"]  # never write to a new job of the same name
        self._path = (GROUP, VERSION, self._metadata["namespace"], f"{KIND.lower()}s", metadata["name"])
        self._before: dict[str, Any] | None = None

    def before(self) -> dict[str, Any]:
        """Return the status as it was before this run wrote to it."""
        if self._before is None:
            self._before = self.read(REQUEST_SECONDS)
        return self._before

    def read(self, seconds: float) -> dict[str, Any]:
        """Return the present status."""
        found: Any = self._api.get_namespaced_custom_object_status(*self._path, _request_timeout=seconds)
        status: dict[str, Any] = found.get("status") or {}
        return status

    def apply(self, status: dict[str, Any]) -> None:
        """Replace everything that the trainer has written there so far."""
        self._api.patch_namespaced_custom_object_status(
            *self._path,
            {"apiVersion": API_VERSION, "kind": KIND, "metadata": self._metadata, "status": readable(status)},
            field_manager=FIELD_MANAGER,
            force=True,
            _content_type="application/apply-patch+yaml",
            _request_timeout=REQUEST_SECONDS,
        )
