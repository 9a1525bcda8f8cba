"""Errors of requests to the API server."""

from __future__ import annotations

import json
from typing import Any

NAMESPACE_TERMINATING = "NamespaceTerminating"
"""Reason of a refusal to create an object in a namespace that is being deleted."""


_NO_SUCH_PATH = ("could not find the requested resource", "404 page not found")


class ApiError(Exception):
    """A request that did not succeed.

    `status` is the HTTP status, or 0 without an answer. `reason` is Kubernetes' own word (`Conflict`, `AlreadyExists`,
    ...). `retry_after` is the delay in seconds that the server asked for.
    """

    def __init__(self, what: str, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{what}: {status or 'no answer'} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after

    @property
    def not_found(self) -> bool:
        """Whether the object does not exist."""
        return self.status == 404

    @property
    def kind_missing(self) -> bool:
        """Whether the API server does not serve the kind at all."""
        return self.status == 404 and any(words in self.message for words in _NO_SUCH_PATH)

    @property
    def conflict(self) -> bool:
        """Whether a precondition (resourceVersion, uid) no longer holds."""
        return self.status == 409 and self.reason != "AlreadyExists"

    @property
    def already_exists(self) -> bool:
        """Whether the object to create exists."""
        return self.status == 409 and self.reason == "AlreadyExists"

    @property
    def transient(self) -> bool:
        """Whether the same request may succeed later: no answer, too many requests, a server error, an expired token.

        An API server that does not reach etcd answers 401 to any token of a ServiceAccount.
        """
        return self.status in (0, 401, 408, 429) or self.status >= 500

    @property
    def refused(self) -> bool:
        """Whether the request itself is refused (validation, admission, quota, permissions). Retrying does not help."""
        return self.status in (400, 403, 405, 413, 415, 422) or self.kind_missing


class NotLeaderError(Exception):
    """A write that was not sent, because another replica may hold the lease by now."""


def from_answer(what: str, status: int, body: bytes, retry_after: str | None) -> ApiError:
    """The error for an answer of the API server."""
    try:
        answer: Any = json.loads(body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        answer = {"message": body[:500].decode(errors="replace")}
    details = answer.get("details") or {}
    reason = str(answer.get("reason") or "Unknown")
    if any(cause.get("reason") == NAMESPACE_TERMINATING for cause in details.get("causes") or ()):
        reason = NAMESPACE_TERMINATING  # Otherwise it is Forbidden, as without permission.
    wait = retry_after if retry_after is not None else details.get("retryAfterSeconds")
    return ApiError(what, status, reason, str(answer.get("message") or ""), _seconds(wait))


def _seconds(text: object) -> float | None:
    try:
        return max(0.0, float(str(text)))
    except ValueError:
        return None  # A date, which no API server sends. Our own back-off applies.
