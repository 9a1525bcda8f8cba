"""Requests to the API server, as raw JSON.

The official client provides the configuration (the pod's account with its rotating token, or a kubeconfig) and the
connection pool. Its typed API is not used: the operator's image, in which this runs, is built without it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from lorarl_api.v1alpha1 import GROUP, VERSION
from lorarl_trainer.errors import InputError, LorarlError
from lorarl_trainer.pods.own_cluster import own_cluster

PLURAL = "lorarljobs"
REQUEST_SECONDS = 10.0
CONNECT_SECONDS = 5.0
WATCH_SECONDS = 45
"""How long a watch lasts. The next one continues where it ended, so a connection that died unseen costs a minute."""
CONNECTIONS = 32
GONE = 410
"""The status of a version that the API server keeps no longer."""


class ApiError(LorarlError):
    """The API server did not answer, or refused. `status` is that of HTTP; 0 without an answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def away(self) -> bool:
        """Whether the server cannot answer now: not reached, overloaded or faulty. It says nothing of the request."""
        return self.status in (0, 408, 429) or self.status >= 500


class Api:
    """The API server. Safe to use from several threads."""

    def __init__(self, configuration: Any) -> None:
        """`configuration`: of the official client."""
        from kubernetes.client import ApiClient

        configuration.connection_pool_maxsize = CONNECTIONS
        configuration.retries = False  # who asks knows better whether the newest answer will do
        self._client = ApiClient(configuration)

    @classmethod
    def connect(cls) -> Api:
        """Return the API server of this pod's cluster, or of the cluster that KUBECONFIG names.

        Raises:
            InputError: there is neither.
        """
        from kubernetes.config import ConfigException

        try:
            return cls(own_cluster())
        except (ConfigException, OSError) as error:
            hint = "The chart starts it in a pod: dashboard.enabled. Elsewhere set KUBECONFIG to a kubeconfig's path."
            raise InputError("--cluster", f"no cluster ({error})", "a pod's account, or a kubeconfig", hint) from None

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return an object or a page of a list.

        Raises:
            ApiError: it is not there, may not be read, or the server is away.
        """
        return self._json("GET", path, query, None)

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object that the server answers and does not keep, such as a review; return it with its status.

        Raises:
            ApiError: this account may not, or the server is away.
        """
        return self._json("POST", path, None, body)

    def watch(self, path: str, version: str) -> Iterator[dict[str, Any]]:
        """Begin a watch from a version on; return its events as they come, for WATCH_SECONDS.

        Raises:
            ApiError: at once or later, also when the connection breaks. `status` is GONE if the version is too old.
        """
        query = {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": version}
        answer = self._send("GET", path, query | {"timeoutSeconds": str(WATCH_SECONDS)}, None, WATCH_SECONDS + 15.0)
        return self._events(answer)

    def _events(self, answer: Any) -> Iterator[dict[str, Any]]:
        import urllib3

        left = b""
        try:
            for chunk in answer.stream(65_536):
                *lines, left = (left + chunk).split(b"\n")
                yield from (_event(line) for line in lines if line)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiError(0, _reason(error)) from None
        finally:
            answer.close()

    def _json(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        import urllib3

        answer = self._send(method, path, query, body, REQUEST_SECONDS)
        try:
            found: dict[str, Any] = json.loads(answer.read())
            return found
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise ApiError(0, _reason(error)) from None
        finally:
            answer.release_conn()

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Mapping[str, Any] | None,
        read_seconds: float,
    ) -> Any:
        """Send a request; return the answer, of which nothing but the status has been read."""
        import urllib3
        from kubernetes.client import ApiException

        headers = {"Accept": "application/json", "User-Agent": "lorarl-dashboard"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        self._client.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        url = f"{self._client.configuration.host}{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            answer = self._client.rest_client.request(
                method, url, headers=headers, body=body, _request_timeout=(CONNECT_SECONDS, read_seconds)
            ).response
        except (ApiException, urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiError(0, _reason(error)) from None
        if answer.status >= 300:
            raise ApiError(answer.status, f"{answer.status} {_said(answer)}")
        return answer


def jobs_path(namespace: str | None, name: str | None = None) -> str:
    """Return the path of the LoRARLJobs of a namespace (None: of all), or of one of them."""
    within = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    return f"/apis/{GROUP}/{VERSION}{within}/{PLURAL}" + (f"/{quote(name, safe='')}" if name else "")


def _event(line: bytes) -> dict[str, Any]:
    try:
        event: dict[str, Any] = json.loads(line)
    except ValueError:
        raise ApiError(0, "the watch broke within an event") from None
    if event.get("type") == "ERROR":
        status = event.get("object") or {}
        raise ApiError(int(status.get("code") or 0), str(status.get("message")))
    return event


def _said(answer: Any) -> str:
    """Return the message of an answer that is no success."""
    data = answer.read(8192)
    answer.release_conn()
    try:
        return str(json.loads(data)["message"])
    except (ValueError, KeyError, TypeError):
        return str(data[:200].decode(errors="replace"))


def _reason(error: Exception) -> str:
    """Return why there was no answer. No header is in it: a request's token must not reach a log or a page."""
    found: object = getattr(error, "reason", None) or error
    return f"no answer from the API server ({type(found).__name__})"
