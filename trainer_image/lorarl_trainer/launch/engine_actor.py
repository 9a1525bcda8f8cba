"""What runs an engine in a pod: an actor of Ray, whose child process it is, and through which the driver reaches it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.devices.base import Gpu
from lorarl_trainer.devices.host_memory import host_memory
from lorarl_trainer.devices.nvidia_smi import largest_gpu
from lorarl_trainer.launch.engine_places import Here
from lorarl_trainer.models.model_sizes import sizes_of
from lorarl_trainer.planning.separate import require_engine_fit
from lorarl_trainer.planning.verdict import judge, require_gpu
from lorarl_trainer.pods.drain import RUN_DIR
from lorarl_trainer.pods.output import show_in_pod_log
from lorarl_trainer.pods.owner import pod_name
from lorarl_trainer.servers.adapter_files import AdapterFiles, DeliveredVersions
from lorarl_trainer.servers.key import ServerKey
from lorarl_trainer.servers.open import SERVED
from lorarl_trainer.servers.reach import OverHttp, open_session
from lorarl_trainer.storage.base_model import BaseModel, fetch_base_config, fetch_base_model
from lorarl_trainer.storage.secrets import read_named
from lorarl_trainer.threads import in_background

ENGINES = "engines"
"""Folder in a pod's run folder with what its engine prints, and the adapters that it reads."""


class EngineActor:
    """One start of an engine. All methods run in the event loop of Ray's actor, whose thread is the child's parent."""

    def __init__(self, spec: LoRARLJobSpec, key: str) -> None:
        """Start nothing yet. `key`: what the engine wants from its clients, of which this is the only one."""
        self._spec = spec
        run_dir = os.environ.get(RUN_DIR)
        assert run_dir is not None, "each pod has a run folder"
        self._folder = Path(run_dir).absolute() / ENGINES
        self._engine = Here(spec, (), key, self._folder)
        self._versions = DeliveredVersions(self._folder / SERVED)
        self._session = open_session(ServerKey(key), by_proxy=False)
        self._reach = OverHttp(self._engine.url, self._session)

    async def place(self) -> tuple[str, str]:
        """Return the name of the pod, and Ray's id of it as a machine, once the actor runs."""
        import ray

        return pod_name(), ray.get_runtime_context().get_node_id()

    async def start(self, log: str) -> str:
        """Fetch the base model to this pod, and start the engine; return the model's fingerprint.

        Raises what prevents that. What the engine prints is in the pod's log too, which outlasts its disk.
        """
        model = await in_background(_fetch_fitting_model, self._spec)
        await self._engine.start(model.folder, log)
        show_in_pod_log(log.removesuffix(".log"), "What the engine prints follows.", [self._folder / log])
        return model.fingerprint

    async def ended(self) -> str:
        """Wait until the engine has ended by itself, and return why."""
        return await self._engine.ended()

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float) -> tuple[int, str]:
        """Pass a request on to the engine: see `Reach`."""
        return await self._reach.ask(method, path, body, seconds)

    async def deliver(self, name: str, files: AdapterFiles, kept: Collection[str]) -> str:
        """Write an adapter's files to this pod's disk; return their folder. See `DeliveredVersions`."""
        return str(await self._versions.deliver(name, files, kept))

    async def end(self) -> None:
        """End the engine and all that it has started."""
        await self._engine.end()
        await self._session.close()


def _fetch_fitting_model(spec: LoRARLJobSpec) -> BaseModel:
    """Fetch the base model to this pod, unless the engine has no room here. Raises LorarlError as workers do."""
    secrets = read_named(spec.model.credentials_secret, "spec.model.credentialsSecret")
    config, there = fetch_base_config(spec, secrets), largest_gpu() if spec.on_gpu else host_memory()
    judge(spec, config)
    if isinstance(there, Gpu):
        require_gpu(there)
    if there is not None:
        require_engine_fit(spec, sizes_of(config), there)
    return fetch_base_model(spec, secrets)
