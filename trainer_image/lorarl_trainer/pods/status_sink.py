"""Progress to the API server: the newest status, at most one write a second, and never a wait for the training.

Server-side apply under a field manager of its own, so that the operator's part of the status is never touched. While the API server is
away the training goes on; once it is back it gets the newest status.
"""

from __future__ import annotations

import json
import os
import re
import threading
from typing import Any

from lorarl_api.v1alpha1 import API_VERSION, GROUP, KIND, VERSION, LoRARLJob
from lorarl_trainer.pods.status import RunStatus
from lorarl_trainer.progress import Event

FIELD_MANAGER = "lorarl-trainer"
LEAST_SECONDS = 1.0
"""Between two writes: a small model's steps take less."""
LONGEST_PAUSE = 30.0
"""Between two attempts while the API server does not answer."""
REQUEST_SECONDS = 10.0
LAST_SECONDS = 15.0
"""How long the end of a run waits for its last status: less than a pod's grace period."""
_GONE = (401, 404)
"""What the API server says of a job that was deleted, and of its pods' account: nobody is left to tell."""
_GONE_FOR_GOOD = 2
"""So many of these answers in a row, a second apart, end the wait for the last status."""

_ASTRAL = re.compile("[\U00010000-\U0010ffff]")


class StatusSink:
    """Writes the trainer's part of the status of one LoRARLJob."""

    name = "the job's status"

    def __init__(self, job: LoRARLJob, attempt: int) -> None:
        """Nothing is sent before the first event. `attempt` is the number that the operator gave this start of the job."""
        self._status = RunStatus(job, attempt)
        self._target = _Target(job)
        self._changed = threading.Condition()
        self._unsent = self._closing = False
        self._trouble = "no answer"
        self._thread: threading.Thread | None = None

    def on_event(self, event: Event) -> None:
        """Take one event; it is sent soon."""
        with self._changed:
            self._status.on_event(event)
            self._unsent = True
            self._changed.notify_all()
        if self._thread is None:
            # A daemon: an API server that hangs must not keep the process from ending.
            self._thread = threading.Thread(target=self._run, name="job-status", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Send the last status.

        Raises:
            TimeoutError: the API server did not take it in time.
            LookupError: the job is gone, or the account of its pods.
        """
        if self._thread is None:
            return
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(LAST_SECONDS)
        if self._thread.is_alive():
            raise TimeoutError(
                f"the API server did not take the last status within {LAST_SECONDS:g} s: {self._trouble}"
            )
        if self._unsent:
            raise LookupError(
                f"the job is gone, or its pods' account, so nobody was told how it ended: {self._trouble}"
            )

    def _run(self) -> None:
        pause, gone = LEAST_SECONDS, 0
        while self._wait_for_news() and gone < _GONE_FOR_GOOD:
            try:
                self._send()
                pause, gone = LEAST_SECONDS, 0
            except Exception as error:  # noqa: BLE001 - whatever keeps the status from being written, training goes on
                self._trouble = " ".join(str(error).split())[:500]
                self._unsent = True
                gone = gone + 1 if self._closing and getattr(error, "status", None) in _GONE else 0
                pause = LEAST_SECONDS if self._closing else min(LONGEST_PAUSE, 2 * pause)
            self._pause(pause)

    def _wait_for_news(self) -> bool:
        """Wait for something to send; False where the run is over and everything is sent."""
        with self._changed:
            self._changed.wait_for(lambda: self._unsent or self._closing)
            return self._unsent

    def _pause(self, seconds: float) -> None:
        """Wait before the next write. The end of the run cuts a long pause short, though not to nothing."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._closing, seconds):
                return
            if self._unsent:
                self._changed.wait(LEAST_SECONDS / 2)

    def _send(self) -> None:
        before = self._target.before()
        with self._changed:
            status, self._unsent = self._status.as_dict(before), False
        self._target.apply(status)


def readable(status: dict[str, Any]) -> dict[str, Any]:
    """The status without emojis and the like.

    The official client escapes them as JSON does, and the API server reads an apply as YAML, which has no such escapes: it refuses it.
    """
    kept: dict[str, Any] = json.loads(_ASTRAL.sub("\N{REPLACEMENT CHARACTER}", json.dumps(status, ensure_ascii=False)))
    return kept


class _Target:
    """The LoRARLJob's status on the API server: of the cluster that this pod is in, or that KUBECONFIG names."""

    def __init__(self, job: LoRARLJob) -> None:
        # Here, in the main thread: Ray imports some of the same modules, and two threads see each other's half-made ones.
        from kubernetes import client, config

        if os.environ.get("KUBECONFIG"):
            config.load_kube_config()
        else:
            config.load_incluster_config()
        self._api = client.CustomObjectsApi()
        self._metadata = {"name": job.name, "namespace": job.metadata.namespace or "default"}
        if job.uid:
            self._metadata["uid"] = job.uid  # a job of the same name that was made anew is not ours to write to
        self._path = (GROUP, VERSION, self._metadata["namespace"], f"{KIND.lower()}s", job.name)
        self._before: dict[str, Any] | None = None

    def before(self) -> dict[str, Any]:
        """What the status said when this run began to write to it."""
        if self._before is None:
            found: Any = self._api.get_namespaced_custom_object_status(*self._path, _request_timeout=REQUEST_SECONDS)
            self._before = found.get("status") or {}
        return self._before

    def apply(self, status: dict[str, Any]) -> None:
        """Replace everything that the trainer has ever written there."""
        self._api.patch_namespaced_custom_object_status(
            *self._path,
            {"apiVersion": API_VERSION, "kind": KIND, "metadata": self._metadata, "status": readable(status)},
            field_manager=FIELD_MANAGER,
            force=True,
            _content_type="application/apply-patch+yaml",
            _request_timeout=REQUEST_SECONDS,
        )
