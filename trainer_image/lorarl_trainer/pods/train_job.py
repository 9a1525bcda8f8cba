"""Progress of a run in a TrainJob of Kubeflow Trainer: `status.trainerStatus` there (docs/pipelines.md).

Kubeflow's controller gives a TrainJob's pods the address of a server that writes it, if its feature gate TrainJobStatus
is on. What is sent is what a LoRARLJob's status has. Training never waits for it, and continues if it fails.
"""

from __future__ import annotations

import json
import os
import ssl
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self
from urllib.error import HTTPError
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.pods.status import RunStatus
from lorarl_trainer.progress import CheckpointDone, EvalDone, Event, RunFinished, RunStarted, StepDone

URL, CA, TOKEN = (f"KUBEFLOW_TRAINER_SERVER_{name}" for name in ("URL", "CA_CERT", "TOKEN"))
"""Environment variables of a TrainJob's pods: the address; the files with its authority and with the pod's token."""
STEP_SECONDS = 5.0
"""Minimum time between two requests if nothing but steps has happened. Kubeflow asks its clients for it."""
REQUEST_SECONDS = 5.0
_INT32 = 2**31 - 1


def trainer_status(status: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Return the trainer's part of a LoRARLJob's status as Kubeflow has it: numbers as whole percent, and as text."""
    found: dict[str, Any] = {"lastUpdatedTime": f"{now:%FT%TZ}"}
    if "step" in status:
        found["progressPercentage"] = 100 * status["step"] // status["totalSteps"]
    if "estimatedRemainingSeconds" in status:
        found["estimatedRemainingSeconds"] = min(status["estimatedRemainingSeconds"], _INT32)
    if metrics := status.get("metrics"):
        found["metrics"] = [{"name": name, "value": f"{value:g}"} for name, value in metrics.items()]
    return found


class TrainJobSink:
    """Sends progress to Kubeflow's server, in the thread in which its events come."""

    name = "the TrainJob's status"

    def __init__(self, job: LoRARLJob, url: str, ca: Path, token: Path) -> None:
        """`ca` and `token` are files. The token changes while the pod runs, so each request reads it."""
        self._status = RunStatus(job, attempt=1)
        self._url, self._ca, self._token = url, ca, token
        self._sent_at = -STEP_SECONDS
        self._unsent = False
        self._error: Exception | None = None

    @classmethod
    def of_environment(cls, job: LoRARLJob, environment: Mapping[str, str] = os.environ) -> tuple[Self, ...]:
        """Return the sink of a TrainJob's pod; none elsewhere."""
        if not {URL, CA, TOKEN} <= environment.keys():
            return ()
        return (cls(job, environment[URL], Path(environment[CA]), Path(environment[TOKEN])),)

    def on_event(self, event: Event) -> None:
        """Apply one event. What users wait for is sent at once, and steps now and then."""
        self._status.on_event(event)
        match event:
            case StepDone():
                self._unsent = True
                if time.monotonic() - self._sent_at >= STEP_SECONDS:
                    self._send()
            case RunStarted() | EvalDone() | CheckpointDone() | RunFinished():
                self._send()

    def close(self) -> None:
        """Send what is left.

        Raises:
            Exception: the newest status did not arrive.
        """
        if self._unsent:
            self._send()
        if self._error:
            raise self._error

    def _send(self) -> None:
        status = trainer_status(self._status.as_dict({}), datetime.now(UTC))
        try:
            self._post({"trainerStatus": status})
            self._unsent, self._error = False, None
        except Exception as error:  # noqa: BLE001 - training continues whatever the server does; the next event tries again
            self._unsent, self._error = True, error
        self._sent_at = time.monotonic()

    def _post(self, body: dict[str, Any]) -> None:
        secure = HTTPSHandler(context=ssl.create_default_context(cafile=str(self._ca)))
        headers = {"Authorization": f"Bearer {self._token.read_text().strip()}", "Content-Type": "application/json"}
        request = Request(self._url, json.dumps(body).encode(), headers)
        try:
            # Without the proxies of the environment: the server is in the cluster.
            build_opener(ProxyHandler({}), secure).open(request, timeout=REQUEST_SECONDS).close()
        except HTTPError as error:
            raise ConnectionError(f"{error}: {error.read().decode(errors='replace')[:500].strip()}") from error
