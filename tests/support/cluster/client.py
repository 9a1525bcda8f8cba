"""A small client of the API server for tests: JSON in, JSON out, 1 ms per request instead of kubectl's 100."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, urlencode

from lorarl_operator.kube.apply import APPLY_TYPE, apply_body
from support.cluster.processes import until

Object = dict[str, Any]
TIMEOUT_SECONDS = 30.0

# kind: (group and version, plural, namespaced). A new kind is a line here.
KINDS = {
    "Namespace": ("v1", "namespaces", False),
    "Node": ("v1", "nodes", False),
    "Pod": ("v1", "pods", True),
    "ConfigMap": ("v1", "configmaps", True),
    "Secret": ("v1", "secrets", True),
    "Service": ("v1", "services", True),
    "ServiceAccount": ("v1", "serviceaccounts", True),
    "ResourceQuota": ("v1", "resourcequotas", True),
    "Event": ("v1", "events", True),
    "Role": ("rbac.authorization.k8s.io/v1", "roles", True),
    "RoleBinding": ("rbac.authorization.k8s.io/v1", "rolebindings", True),
    "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies", True),
    "ClusterRole": ("rbac.authorization.k8s.io/v1", "clusterroles", False),
    "ClusterRoleBinding": ("rbac.authorization.k8s.io/v1", "clusterrolebindings", False),
    "Deployment": ("apps/v1", "deployments", True),
    "Job": ("batch/v1", "jobs", True),
    "PodDisruptionBudget": ("policy/v1", "poddisruptionbudgets", True),
    "Lease": ("coordination.k8s.io/v1", "leases", True),
    "PriorityClass": ("scheduling.k8s.io/v1", "priorityclasses", False),
    "CustomResourceDefinition": ("apiextensions.k8s.io/v1", "customresourcedefinitions", False),
    "MutatingWebhookConfiguration": ("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations", False),
    "ValidatingWebhookConfiguration": ("admissionregistration.k8s.io/v1", "validatingwebhookconfigurations", False),
    "ResourceClaimTemplate": ("resource.k8s.io/v1", "resourceclaimtemplates", True),
    "ResourceClaim": ("resource.k8s.io/v1", "resourceclaims", True),
    "ResourceSlice": ("resource.k8s.io/v1", "resourceslices", False),
    "DeviceClass": ("resource.k8s.io/v1", "deviceclasses", False),
    "LoRARLJob": ("lorarl.io/v1alpha1", "lorarljobs", True),
    "LoRARLSweep": ("lorarl.io/v1alpha1", "lorarlsweeps", True),
    "LoRARLSchedule": ("lorarl.io/v1alpha1", "lorarlschedules", True),
    "LoRARLJobTemplate": ("lorarl.io/v1alpha1", "lorarljobtemplates", True),
    "ClusterLoRARLJobTemplate": ("lorarl.io/v1alpha1", "clusterlorarljobtemplates", False),
    "RayJob": ("ray.io/v1", "rayjobs", True),
    "RayCluster": ("ray.io/v1", "rayclusters", True),
    "LLMInferenceService": ("serving.kserve.io/v1alpha2", "llminferenceservices", True),
    "ModelAdapter": ("model.aibrix.ai/v1alpha1", "modeladapters", True),
    "Workflow": ("argoproj.io/v1alpha1", "workflows", True),
    "WorkflowTemplate": ("argoproj.io/v1alpha1", "workflowtemplates", True),
    "WorkflowTaskResult": ("argoproj.io/v1alpha1", "workflowtaskresults", True),
    "ClusterTrainingRuntime": ("trainer.kubeflow.org/v1alpha1", "clustertrainingruntimes", False),
    "TrainJob": ("trainer.kubeflow.org/v1alpha1", "trainjobs", True),
    "Workload": ("kueue.x-k8s.io/v1beta2", "workloads", True),
    "LocalQueue": ("kueue.x-k8s.io/v1beta2", "localqueues", True),
    "ClusterQueue": ("kueue.x-k8s.io/v1beta2", "clusterqueues", False),
    "ResourceFlavor": ("kueue.x-k8s.io/v1beta2", "resourceflavors", False),
    "WorkloadPriorityClass": ("kueue.x-k8s.io/v1beta2", "workloadpriorityclasses", False),
}


class ApiError(Exception):
    """The API server refused; `status` is HTTP's, the text what it said."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Api:
    """Requests as one user. Safe to use from any thread: each has its own connection.

    On loopback there is either an API server, with a CA and a token, or a `kubectl proxy`, which needs neither.
    """

    def __init__(self, port: int, ca: str | None = None, token: str | None = None) -> None:
        self.port = port
        self._ssl = ssl.create_default_context(cafile=ca) if ca else None
        self._token = token
        self._local = threading.local()

    def get(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """An object, or None where it is not there."""
        try:
            return self.request("GET", path_of(kind, namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def list(self, kind: str, namespace: str | None = None, labels: str = "", fields: str = "") -> list[Object]:
        """The objects of a kind in one namespace, or in all of them."""
        query = urlencode({"labelSelector": labels, "fieldSelector": fields})
        items: list[Object] = self.request("GET", f"{path_of(kind, namespace)}?{query}")["items"]
        return items

    def create(self, manifest: Object) -> Object:
        metadata = manifest["metadata"]
        return self.request("POST", path_of(manifest["kind"], metadata.get("namespace")), manifest)

    def apply(self, manifest: Object, manager: str = "tests") -> Object:
        """Server-side apply, taking over fields that others hold."""
        metadata = manifest["metadata"]
        path = path_of(manifest["kind"], metadata.get("namespace"), metadata["name"])
        return self.request("PATCH", f"{path}?fieldManager={manager}&force=true", apply_body(manifest), APPLY_TYPE)

    def patch(self, kind: str, name: str, patch: Object, namespace: str | None = None, subresource: str = "") -> Object:
        """A JSON merge patch."""
        return self.request("PATCH", path_of(kind, namespace, name, subresource), patch, "application/merge-patch+json")

    def delete(self, kind: str, name: str, namespace: str | None = None, *, policy: str = "Background") -> None:
        """Delete an object; nothing when it is not there."""
        try:
            self.request("DELETE", path_of(kind, namespace, name), {"propagationPolicy": policy})
        except ApiError as error:
            if error.status != 404:
                raise

    def wait(
        self, kind: str, name: str, namespace: str | None, holds: Callable[[Object], Any], *, seconds: float = 15
    ) -> Object:
        """The object as soon as `holds` says so of it."""
        last: Object | None = None

        def probe() -> Object | None:
            nonlocal last
            last = self.get(kind, name, namespace)
            return last if last is not None and holds(last) else None

        try:
            return until(seconds, f"{kind} {name}", probe)
        except AssertionError as error:
            raise AssertionError(f"{error}: {json.dumps((last or {}).get('status'), indent=1)}") from None

    def wait_gone(self, kind: str, name: str, namespace: str | None = None, *, seconds: float = 15) -> None:
        """Return when the object is not there any more."""
        until(seconds, f"{kind} {name} gone", lambda: self.get(kind, name, namespace) is None)

    def watch(
        self, kind: str, namespace: str | None = None, labels: str = "", *, seconds: int = 60
    ) -> Iterator[tuple[str, Object]]:
        """(ADDED, MODIFIED or DELETED, object), beginning with all that is there, for `seconds` at most."""
        query = urlencode({"watch": "true", "labelSelector": labels, "timeoutSeconds": seconds})
        connection = self._connect(timeout=seconds + 10)
        try:
            answer = self._send(connection, "GET", f"{path_of(kind, namespace)}?{query}", None, "")
            for line in answer:
                event = json.loads(line)
                yield event["type"], event["object"]
        finally:
            connection.close()

    def request(
        self, method: str, path: str, body: Object | bytes | None = None, content_type: str = "application/json"
    ) -> Object:
        """Any request; `path` begins with a slash.

        Raises:
            ApiError: The answer is no success.
        """
        for attempt in ("kept connection", "new connection"):
            connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
            if connection is None:
                connection = self._local.connection = self._connect(TIMEOUT_SECONDS)
            try:
                data = self._send(connection, method, path, body, content_type).read()
                break
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                # The server closes a connection that was idle for long, without having seen this request.
                if attempt == "new connection" or not isinstance(
                    error, http.client.RemoteDisconnected | BrokenPipeError | ssl.SSLEOFError
                ):
                    raise
        parsed: Object = json.loads(data) if data.startswith(b"{") else {"text": data.decode()}
        return parsed

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        if self._ssl is None:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout, context=self._ssl)

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: Object | bytes | None,
        content_type: str,
    ) -> http.client.HTTPResponse:
        headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {self._token}"} if self._token else {})
        if body is not None:
            headers["Content-Type"] = content_type
        connection.request(method, path, json.dumps(body) if isinstance(body, dict) else body, headers)
        answer = connection.getresponse()
        if answer.status >= 300:
            text = answer.read().decode(errors="replace")
            raise ApiError(answer.status, json.loads(text).get("message", text) if text.startswith("{") else text)
        return answer


def path_of(kind: str, namespace: str | None, name: str = "", subresource: str = "") -> str:
    """The path of a collection, an object or a part of it."""
    version, plural, namespaced = KINDS[kind]
    parts = ["api" if version == "v1" else "apis", version]
    if namespaced and namespace:
        parts += ["namespaces", namespace]
    parts += [part for part in (plural, quote(name), subresource) if part]
    return "/" + "/".join(parts)


def is_ready(found: Object) -> bool:
    """Whether a pod or a node says that it is ready."""
    conditions = found.get("status", {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
