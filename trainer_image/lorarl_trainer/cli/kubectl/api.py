"""Asks the API server, by the user's own `kubectl`: with their kubeconfig, their credentials and their rights."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lorarl_trainer.errors import LorarlError

JOBS = "lorarljobs.lorarl.io"
_LOGGED = re.compile(r"[IWEF]\d{4} \d\d:\d\d:")
"""How a line of kubectl's log begins. It repeats what kubectl says at the end."""


class ApiError(LorarlError):
    """kubectl failed. The message is its own."""


@dataclass(frozen=True)
class Kubectl:
    """kubectl with the flags that the user gave."""

    flags: tuple[str, ...] = ()

    def get(self, *arguments: str) -> dict[str, Any]:
        """Return what `kubectl get ... -o json` prints.

        Raises:
            ApiError: there is no kubectl, no such object, or no right to read it.
        """
        found: dict[str, Any] = json.loads(self._run("get", *arguments, "-o", "json"))
        return found

    def apply(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object, or update it, with `kubectl apply`; return it.

        Raises:
            ApiError: the API server refuses it.
        """
        found: dict[str, Any] = json.loads(self._run("apply", "-f", "-", "-o", "json", stdin=json.dumps(manifest)))
        return found

    def create(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object with `kubectl create`; return it.

        Raises:
            ApiError: the API server refuses it, or its name is taken.
        """
        found: dict[str, Any] = json.loads(self._run("create", "-f", "-", "-o", "json", stdin=json.dumps(manifest)))
        return found

    def delete(self, name: str) -> None:
        """Delete a LoRARLJob. Raises ApiError if there is none, or no right to do so."""
        self._run("delete", JOBS, name, "--wait=false")

    def _run(self, *arguments: str, stdin: str | None = None) -> str:
        command = ["kubectl", *arguments, *self.flags]
        try:
            done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise ApiError("kubectl is not on the PATH. Install it, or name the record: --record s3://...") from None
        if done.returncode:
            said = "\n".join(line for line in done.stderr.strip().splitlines() if not _LOGGED.match(line))
            asked = " ".join(part for part in arguments if part not in ("-o", "json"))
            raise ApiError(f"kubectl {asked}: {said}")
        return done.stdout

    def job(self, name: str) -> dict[str, Any]:
        """Return a LoRARLJob. Raises ApiError if it cannot be read."""
        try:
            return self.get(JOBS, name)
        except ApiError as error:
            raise ApiError(f"{error}\nA job that is gone may have left its record: --record s3://.../{name}") from None

    def secret(self, name: str) -> dict[str, str]:
        """Return the keys and values of a Secret; nothing if the user may not read it."""
        try:
            data = self.get("secret", name).get("data") or {}
        except ApiError:
            return {}
        return {key: base64.b64decode(value).decode(errors="replace") for key, value in data.items()}

    def warnings(self, job: str) -> list[str]:
        """Return the messages of the newest Warning Events of a job, with their reasons; none if they are not read."""
        selector = f"involvedObject.kind=LoRARLJob,involvedObject.name={job},type=Warning"
        try:
            events = self.get("events", "--field-selector", selector)["items"]
        except ApiError:
            return []
        events.sort(key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
        return [f"{event.get('reason')}: {event.get('message')}" for event in events]
