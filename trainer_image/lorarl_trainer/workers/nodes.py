"""Which worker runs on which machine: Ray's placement group, node by node, and the port where the workers meet."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.errors import NodeLostError
from lorarl_trainer.servers.hosts import port_for_later
from lorarl_trainer.threads import in_background
from lorarl_trainer.workers.ahead import WITHOUT

_POLL_SECONDS = 0.2
_LOSS_POLL_SECONDS = 1.0


def reserve(
    spec: LoRARLJobSpec, abandoned: threading.Event | None = None, gives_up: Callable[[], bool] = lambda: False
) -> Any | None:
    """Reserve one device per worker.

    `gives_up`: asked a few times per second whether to wait no longer.

    Returns:
        Ray's placement group once every device is available, or None if `abandoned` was set or it gave up first.
    """
    import ray

    bundle: dict[str, float] = {"CPU": 1, "GPU": 1} if spec.on_gpu else {"CPU": 1}
    # A cluster node has as many workers as GPUs. PACK keeps a tensor-parallel group together on CPU too.
    group = ray.util.placement_group([bundle] * spec.world_size, strategy="PACK")
    ready = group.ready()
    while not ray.wait([ready], timeout=_POLL_SECONDS)[0]:
        if (abandoned is not None and abandoned.is_set()) or gives_up():
            ray.util.remove_placement_group(group)
            return None
    ray.get(ready)
    return group


class Nodes:
    """The machines of a placement group, and the bundles on each."""

    def __init__(self, group: Any) -> None:
        """Take the placement group that `reserve` returned.

        Raises:
            NodeLostError: one of its machines is lost already.
        """
        import ray

        self._group = group
        placement = ray.util.placement_group_table(group)["bundles_to_node_id"]
        if not all(placement.values()):
            raise NodeLostError("a machine was lost before the workers' processes started")
        self.bundles = by_node(placement)
        """The bundles of each node. The first node has bundle 0."""
        self.machines = frozenset(placement.values())
        """Ray's ids of the nodes."""
        self.first_machine = frozenset([placement[0]])
        """The same of the first worker's node."""

    def at(self, bundle: int) -> Any:
        """Return Ray's scheduling strategy that places an actor or a task on this bundle."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)

    def call(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call a function once on each machine, in its own process, since a worker may be busy or dead.

        Returns:
            Ray's references.
        """
        return self.call_each(function, [arguments] * len(self.bundles))

    def call_each(self, function: Callable[..., Any], arguments: Sequence[Sequence[Any]]) -> list[Any]:
        """The same with other arguments on each machine."""
        import ray

        return [
            ray.remote(function)
            .options(num_cpus=0, max_retries=0, scheduling_strategy=self.at(bundles[0]), runtime_env=WITHOUT)
            .remote(*its)
            for bundles, its in zip(self.bundles, arguments, strict=True)
        ]

    async def loss(self, machines: frozenset[str] | None = None) -> Exception:
        """Wait for the loss of one of these machines, by default of all: see `loss_of`."""
        return await loss_of(machines or self.machines)

    def rendezvous(self) -> tuple[str, int]:
        """Return the address of the first worker's machine, and a port that is free there."""
        import ray

        find = ray.remote(_meeting_point).options(num_cpus=0, scheduling_strategy=self.at(0), runtime_env=WITHOUT)
        address: tuple[str, int] = ray.get(find.remote())
        return address

    def release(self) -> None:
        """Give the devices back."""
        import ray

        ray.util.remove_placement_group(self._group)


async def loss_of(machines: frozenset[str]) -> Exception:
    """Wait until Ray knows that one of these machines is lost; return the error that says so.

    Most calls to that machine's processes have failed by then. Once, Ray left one without an answer for minutes.
    """
    from ray.exceptions import NodeDiedError, RayError

    while True:
        await asyncio.sleep(_LOSS_POLL_SECONDS)
        with contextlib.suppress(RayError):  # Ray could not say
            if lost := machines & await in_background(lost_machines):
                return NodeDiedError(f"Ray's node {min(lost)} has died")


def lost_machines() -> frozenset[str]:
    """Return Ray's ids of the machines that it knows to be lost."""
    import ray

    return frozenset(node["NodeID"] for node in ray.nodes() if not node["Alive"])


def by_node(placement: Mapping[int, str]) -> list[list[int]]:
    """Group bundles by node, given the node of every bundle. The first node has bundle 0."""
    nodes: dict[str, list[int]] = {}
    for bundle in sorted(placement):
        nodes.setdefault(placement[bundle], []).append(bundle)
    return list(nodes.values())


def _meeting_point() -> tuple[str, int]:
    """Return this machine's address, and a port that is free."""
    import ray

    return ray.util.get_node_ip_address(), port_for_later()
