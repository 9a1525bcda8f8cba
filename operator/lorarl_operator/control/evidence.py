"""What other components report about a job's objects and nodes: why it is stuck, and whether a node is being drained.

Events are fetched on demand and never watched. For any question about Events the API server reads all Events of the
namespace. So one answer serves all stuck jobs of a namespace for a while, however many they are. A few namespaces are
read at the same time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from weakref import WeakValueDictionary

from lorarl_operator.decide import parse
from lorarl_operator.decide.decision import Want
from lorarl_operator.decide.models import NODE_COMES, Evidence, KubeEvent, Observed, Workload
from lorarl_operator.kube.client import Client
from lorarl_operator.kube.errors import ApiError
from lorarl_operator.kube.resources import EVENTS, NODES, WORKLOADS, Resource

log = logging.getLogger(__name__)

FRESH_SECONDS = 5.0
"""How old an answer about a namespace, or about the nodes, may be."""
REFUSED_SECONDS = 300.0
"""How old the answer may be that the operator may not list nodes, as with watchNamespaces."""
_WARNINGS, _NODE_COMES = "type=Warning", [f"reason={reason}" for reason in NODE_COMES]
_KINDS = frozenset({"RayJob", "RayCluster", "Pod", "Job"})
_PER_OBJECT = 5
_PAGES = 20
_PAGE = 500
_ANSWERS = 400
_LISTINGS = 4
"""At the same time: more would only wait in the API server, and each holds a page in memory."""
_UID_LABEL = "kueue.x-k8s.io/job-uid"

type _Query = tuple[str, str]
"""A namespace, and which of its Events."""
type _ByObject = dict[tuple[str, str], list[KubeEvent]]


class EvidenceSource:
    """Events by namespace, and Kueue's Workloads."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._events: OrderedDict[_Query, tuple[float, _ByObject]] = OrderedDict()
        self._one_at_a_time: WeakValueDictionary[_Query, asyncio.Lock] = WeakValueDictionary()
        self._few_at_a_time = asyncio.Semaphore(_LISTINGS)
        self._workloads: Resource | None = None
        self._nodes = Evidence()
        self._nodes_until = float("-inf")
        self._nodes_once = asyncio.Lock()

    async def fetch(self, observed: Observed, want: Want) -> Evidence:
        """The evidence about a job.

        Raises:
            ApiError: The API server did not answer.
        """
        if want in (Want.WORKLOAD, Want.STOP):
            return Evidence(workload=await self._workload(observed))
        if want is Want.CORDONED:
            return await self._cordoned()
        # That a node is being added is no warning, and is asked for only where a pod waits for one.
        queries = [_WARNINGS, *_NODE_COMES] if any(pod.unschedulable for pod in observed.pods) else [_WARNINGS]
        found = [await self._known((observed.job.namespace, query)) for query in queries]
        names = [("RayJob", one.name) for one in observed.ray_jobs]
        names += [("RayCluster", one.name) for one in observed.ray_clusters]
        names += [("Pod", one.name) for one in observed.pods]
        if observed.cleanup is not None:
            names.append(("Job", observed.cleanup.name))
        events = [event for by_object in found for name in names for event in by_object.get(name, ())]
        return Evidence(events=tuple(sorted(events, key=lambda event: event.last_seen, reverse=True)))

    async def _known(self, query: _Query) -> _ByObject:
        # A caller that holds a lock, or waits for it, keeps it in the dictionary.
        lock = self._one_at_a_time.setdefault(query, asyncio.Lock())
        async with lock:
            at, known = self._events.get(query, (float("-inf"), {}))
            if self._clock() - at < FRESH_SECONDS:
                return known
            async with self._few_at_a_time:
                found = await self._listed(*query)
            self._events[query] = (self._clock(), found)
            self._events.move_to_end(query)
            while len(self._events) > _ANSWERS:
                self._events.popitem(last=False)
            return found

    async def _listed(self, namespace: str, fields: str) -> _ByObject:
        found: _ByObject = {}
        pages = 0
        async for items, _ in self._client.pages(EVENTS, namespace, fields=fields, limit=_PAGE):
            for raw in items:
                if (raw.get("involvedObject") or {}).get("kind") in _KINDS:
                    event = parse.event(raw)
                    found.setdefault((event.kind, event.name), []).append(event)
            pages += 1
            if pages == _PAGES:
                break
        for events in found.values():
            events.sort(key=lambda event: event.last_seen, reverse=True)
            del events[_PER_OBJECT:]
        return found

    async def _cordoned(self) -> Evidence:
        """The nodes that take no new pods. They are few, so the answer is short; it serves all jobs for a while."""
        async with self._nodes_once:
            if self._clock() >= self._nodes_until:
                pages = self._client.pages(NODES, None, fields="spec.unschedulable=true", metadata_only=True)
                try:
                    names = [raw["metadata"]["name"] async for items, _ in pages for raw in items]
                    self._nodes, fresh = Evidence(cordoned=frozenset(names)), FRESH_SECONDS
                except ApiError as error:
                    if not error.refused:
                        raise
                    log.warning("no eviction waits for a checkpoint: %s", error)
                    self._nodes, fresh = Evidence(refused=True), REFUSED_SECONDS
                self._nodes_until = self._clock() + fresh
            return self._nodes

    async def _workload(self, observed: Observed) -> Workload:
        if (workloads := await self._served_workloads()) is None:
            return Workload("", ())  # The cluster has no Kueue, although the RayJob has its label.
        for ray_job in observed.ray_jobs:
            try:
                async for items, _ in self._client.pages(
                    workloads, observed.job.namespace, labels=f"{_UID_LABEL}={ray_job.uid}"
                ):
                    for raw in items:
                        return parse.workload(raw)
            except ApiError as error:
                if not error.not_found:
                    raise
                self._workloads = None  # Kueue was removed or upgraded.
        return Workload("", ())

    async def _served_workloads(self) -> Resource | None:
        """Workloads in a version that this cluster's Kueue has. What we read of them is the same in all."""
        if self._workloads is None and (versions := await self._client.served_versions(WORKLOADS.group)):
            version = WORKLOADS.version if WORKLOADS.version in versions else versions[0]
            self._workloads = replace(WORKLOADS, version=version)
        return self._workloads
