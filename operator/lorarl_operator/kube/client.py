"""Requests to the API server, as raw JSON.

The official client provides the configuration (kubeconfig, service account with its rotating token) and the connection
pool. Its models are not used: they would parse each field of each pod, and we read a dozen. (Measured: kopf imports the
official client anyway, and its asyncio flavour adds 1 MB to kopf's 70 MB.)
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import config as kube_config
from kubernetes.aio.client import ApiClient, Configuration

from lorarl_operator import metrics
from lorarl_operator.kube.apply import APPLY_TYPE, apply_body
from lorarl_operator.kube.errors import ApiError, NotLeaderError, from_answer
from lorarl_operator.kube.resources import Resource, resource_of
from lorarl_operator.kube.server_time import ServerTime

FIELD_MANAGER = "lorarl-operator"
ATTEMPTS = 4
"""Attempts at a request that gets no answer, is throttled or meets a server error.

After them the work queue's longer back-off applies.
"""
FIRST_BACKOFF_SECONDS = 0.2
LONGEST_WAIT_SECONDS = 5.0
REQUEST_TIMEOUT_SECONDS = 15.0

_JSON = "application/json"
_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_STRICT = {"fieldValidation": "Strict"}
"""A field that this version of an API does not know is an error, instead of being dropped silently."""

type Manifest = dict[str, Any]
type Fence = Callable[[], float]


def unfenced() -> float:
    """The fence of a client that needs no lease: for reads, and for the lease itself."""
    return float("inf")


class Client:
    """One connection pool to the API server. Each write passes the fence first."""

    def __init__(self, configuration: Configuration, fence: Fence = unfenced) -> None:
        """`fence` returns the seconds in which a write must end. At 0 none may start."""
        # Otherwise aiohttp looks for a netrc file and for proxies at each request, in threads. kopf does not use
        # these either.
        configuration.client_session_kwargs = {"trust_env": False}
        self.configuration = configuration
        self._api = ApiClient(configuration)
        self._api.user_agent = FIELD_MANAGER
        self._fence = fence
        self._time = ServerTime()

    @classmethod
    async def connect(cls, kubeconfig: str | None, fence: Fence = unfenced) -> Client:
        """A client for the cluster of a kubeconfig, or of the service account of this process' pod.

        Raises:
            ConfigException: Neither exists, or it cannot be used.
        """
        configuration = Configuration()
        if kubeconfig is not None:
            await kube_config.load_kube_config(config_file=kubeconfig, client_configuration=configuration)
        else:
            kube_config.load_incluster_config(client_configuration=configuration)
        return cls(configuration, fence)

    def fenced(self, fence: Fence) -> Client:
        """The same connections behind another fence."""
        other = Client.__new__(Client)
        other.configuration, other._api, other._fence, other._time = self.configuration, self._api, fence, self._time
        return other

    def now(self) -> datetime:
        """The present time by the API server's clock, which all replicas share."""
        return self._time.now()

    async def close(self) -> None:
        await self._api.close()

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Manifest | None:
        """An object; None if it does not exist. Objects of the cluster have no namespace."""
        try:
            return await self._request("GET", resource.path(namespace, name))
        except ApiError as error:
            if error.not_found:
                return None
            raise

    async def pages(
        self,
        resource: Resource,
        namespace: str | None,
        *,
        labels: str = "",
        fields: str = "",
        limit: int = 250,
        metadata_only: bool = False,
    ) -> AsyncIterator[tuple[list[Manifest], str]]:
        """All objects of a kind, with the list's version.

        Pages of `limit` objects save memory and never block the event loop for long. `metadata_only` leaves out specs
        and statuses, most of an object's bytes.

        Raises:
            ApiError: 410 if the listing took longer than the server keeps its snapshot.
        """
        query = {"limit": str(limit), "labelSelector": labels, "fieldSelector": fields}
        while True:
            accept = _METADATA if metadata_only else _JSON
            answer = await self._request("GET", resource.path(namespace), query=query, accept=accept)
            yield answer.get("items") or [], answer["metadata"]["resourceVersion"]
            if not (token := answer["metadata"].get("continue")):
                return
            query["continue"] = token

    async def served_versions(self, group: str) -> list[str]:
        """The versions of an API group that the API server serves; none if it does not know the group."""
        try:
            answer = await self._request("GET", f"/apis/{group}")
        except ApiError as error:
            if error.not_found:
                return []
            raise
        return [str(one["version"]) for one in answer.get("versions") or ()]

    async def serves(self, resource: Resource) -> bool:
        """Whether the API server knows the kind."""
        try:
            answer = await self._request("GET", f"/apis/{resource.group}/{resource.version}")
        except ApiError as error:
            if error.not_found:
                return False
            raise
        return any(one["name"] == resource.plural for one in answer["resources"])

    async def open_api(self, group: str, version: str) -> Manifest:
        """The OpenAPI document of a group, with the schemas of its kinds and their defaults.

        All accounts may read it (ClusterRole system:discovery).
        """
        return await self._request("GET", f"/openapi/v3/apis/{group}/{version}")

    async def create(self, manifest: Manifest) -> Manifest:
        """Create an object.

        Raises:
            ApiError: `already_exists` if the name is taken. That may be by this very request, if it was sent again
                because its answer was lost.
        """
        resource = resource_of(manifest)
        return await self._write(
            "create", resource, "POST", resource.path(manifest["metadata"]["namespace"]), query=_STRICT, body=manifest
        )

    async def replace(self, manifest: Manifest) -> Manifest:
        """Replace an object if it has not changed since its resourceVersion was read."""
        resource = resource_of(manifest)
        meta = manifest["metadata"]
        path = resource.path(meta["namespace"], meta["name"])
        return await self._write(
            "update", resource, "PUT", path, body=manifest, conditional=_has_precondition(manifest)
        )

    async def apply(
        self, manifest: Manifest, *, subresource: str | None = None, manager: str = FIELD_MANAGER
    ) -> Manifest:
        """Server-side apply: the manifest's fields become ours. Fields that we applied before and omit now are removed.

        A resourceVersion or uid in the metadata is a precondition. `manager` is whose fields they are.

        Raises:
            ApiError: `conflict` if a precondition does not hold.
        """
        resource = resource_of(manifest)
        meta = manifest["metadata"]
        return await self._write(
            "apply",
            resource,
            "PATCH",
            resource.path(meta["namespace"], meta["name"], subresource),
            query={"fieldManager": manager, "force": "true"},
            body=apply_body(manifest),
            content_type=APPLY_TYPE,
            conditional=_has_precondition(manifest),
        )

    async def merge(self, resource: Resource, namespace: str, name: str, patch: Manifest) -> Manifest:
        """JSON merge patch."""
        path, content_type, conditional = (
            resource.path(namespace, name),
            "application/merge-patch+json",
            _has_precondition(patch),
        )
        return await self._write(
            "patch", resource, "PATCH", path, body=patch, content_type=content_type, conditional=conditional
        )

    async def patch(self, resource: Resource, namespace: str, name: str, patch: list[Manifest]) -> Manifest:
        """JSON patch (RFC 6902): all of its operations, or none.

        Raises:
            ApiError: `refused` also if one of its tests fails.
        """
        path, content_type = resource.path(namespace, name), "application/json-patch+json"
        return await self._write("patch", resource, "PATCH", path, body=patch, content_type=content_type)

    async def try_merge(self, resource: Resource, namespace: str, name: str, patch: Manifest) -> None:
        """A JSON merge patch that is validated and admitted like any other, and then not stored.

        Raises:
            ApiError: `refused` if the API server, one of its policies or a webhook would refuse it.
        """
        await self._request(
            "PATCH",
            resource.path(namespace, name),
            query={"dryRun": "All"},
            body=patch,
            content_type="application/merge-patch+json",
            conditional=_has_precondition(patch),
            fence=self._fence,
        )

    async def try_create(self, manifest: Manifest) -> None:
        """A creation that is validated and admitted like any other, by quotas too, and then not stored.

        Raises:
            ApiError: As for `create`.
        """
        path = resource_of(manifest).path(manifest["metadata"]["namespace"])
        query = {**_STRICT, "dryRun": "All"}
        await self._request("POST", path, query=query, body=manifest, fence=self._fence)

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        uid: str,
        propagation: str = "Background",
        *,
        grace_seconds: int | None = None,
    ) -> Manifest | None:
        """Delete an object if it is still the one with this uid.

        `grace_seconds` takes the place of its own grace period.

        Returns:
            The object, if it stays until its finalizers are done; None if it is deleted.

        Raises:
            ApiError: `conflict` if it has another uid, or if the server had another reason. The object may still exist.
        """
        body: Manifest = {"preconditions": {"uid": uid}, "propagationPolicy": propagation}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        try:
            answer = await self._write(
                "delete", resource, "DELETE", resource.path(namespace, name), body=body, conditional=True
            )
        except ApiError as error:
            if error.not_found:
                return None
            raise
        return answer if answer.get("kind") == resource.kind else None

    async def _write(self, verb: str, resource: Resource, method: str, path: str, **arguments: Any) -> Manifest:
        code = "none"
        try:
            answer = await self._request(method, path, fence=self._fence, **arguments)
            code = "ok"
        except ApiError as error:
            code = str(error.status or "timeout")
            raise
        except NotLeaderError:
            code = "fenced"
            raise
        finally:
            metrics.API_WRITES.labels(verb, resource.plural, code).inc()
        return answer

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: Manifest | list[Manifest] | bytes | None = None,
        content_type: str = "application/json",
        conditional: bool = False,
        fence: Fence = unfenced,
        accept: str = _JSON,
    ) -> Manifest:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await self._request_once(method, path, query, body, content_type, fence, accept)
            except ApiError as error:
                if attempt == ATTEMPTS or not _may_succeed_later(error, conditional):
                    raise
                wait = FIRST_BACKOFF_SECONDS * 2 ** (attempt - 1) * random.uniform(0.5, 1.5)
                wait = max(wait, error.retry_after or 0.0)
                if wait > LONGEST_WAIT_SECONDS:
                    raise  # The work queue waits instead, so that this worker is free for other jobs.
                await asyncio.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    async def _request_once(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None,
        body: Manifest | list[Manifest] | bytes | None,
        content_type: str,
        fence: Fence,
        accept: str,
    ) -> Manifest:
        left = fence()
        if left <= 0:
            raise NotLeaderError(f"{method} {path} was not sent: another replica may hold the lease")
        headers = {"Content-Type": content_type, "Accept": accept, **self._api.default_headers}
        await self._api.update_params_for_auth(headers, None, ["BearerToken"], path, method, None)
        url = self.configuration.host + path
        if query:
            url += "?" + urlencode({key: value for key, value in query.items() if value})
        timeout = aiohttp.ClientTimeout(total=min(REQUEST_TIMEOUT_SECONDS, left))
        what = f"{method} {path}"
        try:
            response = await self._api.rest_client.request(
                method, url, headers=headers, body=body, _request_timeout=timeout
            )
            data = await response.read()
            self._time.note(response.headers.get("Date"))
        except TimeoutError as error:
            raise ApiError(what, 0, "Timeout", f"no answer within {timeout.total:.0f} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ApiError(what, 0, "ConnectionFailed", str(error)) from error
        if response.status >= 300:
            raise from_answer(what, response.status, data, response.headers.get("Retry-After"))
        try:
            answer: Manifest = json.loads(data)
        except ValueError as error:
            raise ApiError(what, 0, "NotJson", f"the answer is not JSON: {error}") from error
        return answer


def _has_precondition(manifest: Manifest) -> bool:
    meta = manifest.get("metadata", {})
    return "resourceVersion" in meta or "uid" in meta


def _may_succeed_later(error: ApiError, conditional: bool) -> bool:
    """Whether the same request may succeed later. A conflict may, if no precondition of ours can have caused it."""
    if error.reason == "NamespaceTerminating":
        return False
    return error.transient or (error.conflict and not conditional)
