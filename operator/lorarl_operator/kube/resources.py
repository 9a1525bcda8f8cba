"""The kinds that the operator reads or writes, and their paths."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind as the API server serves it."""

    group: str
    version: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        """As in manifests: `v1`, `ray.io/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """The path of an object.

        Without a name it is the path of a collection, and without a namespace that of all namespaces.
        """
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if namespace is not None:
            parts += ["namespaces", quote(namespace, safe="")]
        parts += [self.plural]
        if name is not None:
            parts += [quote(name, safe="")]
        if subresource is not None:
            parts += [subresource]
        return "/".join(parts)


LORARLJOBS = Resource("lorarl.io", "v1alpha1", "lorarljobs", "LoRARLJob")
LORARLSWEEPS = Resource("lorarl.io", "v1alpha1", "lorarlsweeps", "LoRARLSweep")
LORARLSCHEDULES = Resource("lorarl.io", "v1alpha1", "lorarlschedules", "LoRARLSchedule")
TEMPLATES = Resource("lorarl.io", "v1alpha1", "lorarljobtemplates", "LoRARLJobTemplate")
CLUSTER_TEMPLATES = Resource("lorarl.io", "v1alpha1", "clusterlorarljobtemplates", "ClusterLoRARLJobTemplate")
RAYJOBS = Resource("ray.io", "v1", "rayjobs", "RayJob")
RAYCLUSTERS = Resource("ray.io", "v1", "rayclusters", "RayCluster")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace")
PODS = Resource("", "v1", "pods", "Pod")
JOBS = Resource("batch", "v1", "jobs", "Job")
EVENTS = Resource("", "v1", "events", "Event")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
NODES = Resource("", "v1", "nodes", "Node")
BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
WORKLOADS = Resource("kueue.x-k8s.io", "v1beta2", "workloads", "Workload")
MODEL_ADAPTERS = Resource("model.aibrix.ai", "v1alpha1", "modeladapters", "ModelAdapter")
LLM_SERVICES = Resource("serving.kserve.io", "v1alpha2", "llminferenceservices", "LLMInferenceService")

_WRITTEN = (
    LORARLJOBS,
    LORARLSWEEPS,
    LORARLSCHEDULES,
    RAYJOBS,
    JOBS,
    LEASES,
    EVENTS,
    BUDGETS,
    MODEL_ADAPTERS,
    LLM_SERVICES,
    Resource("", "v1", "serviceaccounts", "ServiceAccount"),
    Resource("", "v1", "configmaps", "ConfigMap"),
    Resource("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate"),
    Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy"),
    Resource("rbac.authorization.k8s.io", "v1", "roles", "Role"),
    Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding"),
)
_BY_KIND = {(resource.api_version, resource.kind): resource for resource in _WRITTEN}


def written(kind: str) -> Resource:
    """The resource of a kind that the operator writes.

    Raises:
        StopIteration: A kind that the operator never writes.
    """
    return next(resource for resource in _WRITTEN if resource.kind == kind)


def resource_of(manifest: dict[str, object]) -> Resource:
    """The resource that a manifest is written to.

    Raises:
        KeyError: A kind that the operator never writes.
    """
    return _BY_KIND[str(manifest["apiVersion"]), str(manifest["kind"])]
