"""What runs an engine in a pod: an actor of Ray, whose child process it is, and through which the driver reaches it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.launch.engine_places import Here
from lorarl_trainer.pods.drain import RUN_DIR
from lorarl_trainer.pods.owner import pod_name
from lorarl_trainer.servers.adapter_files import AdapterFiles
from lorarl_trainer.servers.key import ServerKey
from lorarl_trainer.servers.open import SERVED
from lorarl_trainer.servers.reach import OverHttp, open_session
from lorarl_trainer.storage.base_model import fetch_base_model
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
        self._session = open_session(ServerKey(key), by_proxy=False)
        self._reach = OverHttp(self._engine.url, self._session)

    async def place(self) -> tuple[str, str]:
        """Return the name of the pod, and Ray's id of it as a machine, once the actor runs."""
        import ray

        return pod_name(), ray.get_runtime_context().get_node_id()

    async def start(self, log: str) -> None:
        """Fetch the base model to this pod, and start the engine. Raises what prevents that."""
        secrets = read_named(self._spec.model.credentials_secret, "spec.model.credentialsSecret")
        model = await in_background(fetch_base_model, self._spec, secrets)
        await self._engine.start(model.folder, log)

    async def ended(self) -> str:
        """Wait until the engine has ended by itself, and return why."""
        return await self._engine.ended()

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float) -> tuple[int, str]:
        """Pass a request on to the engine: see `Reach`."""
        return await self._reach.ask(method, path, body, seconds)

    async def deliver(self, name: str, files: AdapterFiles, kept: Collection[str]) -> str:
        """Write an adapter's files to this pod's disk; return their folder. See `AdapterFiles` for the errors."""
        folder = self._folder / SERVED / name
        await in_background(files.write, folder, kept)
        return str(folder)

    async def end(self) -> None:
        """End the engine and all that it has started."""
        await self._engine.end()
        await self._session.close()
