"""Engines in pods of the job, as the driver has them: each is an actor of Ray on a machine for engines.

No engine listens on the pods' network. Requests and adapters travel through Ray, whose ports want its token.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping
from pathlib import Path, PurePath
from typing import Any

import aiohttp

from lorarl_api.separate_engines import ENGINE_RESOURCE
from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.errors import LorarlError, WorkerError, last_exception
from lorarl_trainer.launch.engine_actor import EngineActor
from lorarl_trainer.launch.engine_places import PlaceLostError
from lorarl_trainer.servers.faults import ServerError, UnreachableError
from lorarl_trainer.servers.reach import Reach
from lorarl_trainer.workers.ahead import WITHOUT
from lorarl_trainer.workers.failures import NODE_LOSS_SECONDS
from lorarl_trainer.workers.nodes import loss_of

_LATE_SECONDS = 30.0
"""How much longer than its own limit a request may take through Ray."""
_DELIVERY_SECONDS = 600.0
_END_SECONDS = 40.0
"""How long an engine may take to end by itself."""


class InPod:
    """In whichever pod for engines is free. Each start may be in another one."""

    def __init__(self, spec: LoRARLJobSpec, number: int, key: str) -> None:
        """Start nothing yet. `number`: the engine's. `key`: what it wants from the actor in its pod."""
        self._spec, self._number, self._key = spec, number, key
        self._actor: Any | None = None
        self._runs = False
        self._pod = self._machine = ""

    @property
    def url(self) -> str:
        return f"engine-{self._number}"

    @property
    def where(self) -> str:
        return f"pod {self._pod}".strip()

    @property
    def is_found(self) -> bool:
        return bool(self._machine)

    def reach(self, session: aiohttp.ClientSession) -> Reach:
        return self

    async def start(self, model: Path | None, log: str) -> str | None:
        """Wait for a pod, and start the engine there: see `EnginePlace`."""
        import ray

        engines = self._spec.separate_engines
        assert engines is not None, "the job has separate engines"
        self._pod = self._machine = ""
        self._actor = (
            ray.remote(EngineActor)
            .options(
                num_cpus=0,
                num_gpus=engines.tensor_parallel_size if self._spec.on_gpu else 0,
                resources={ENGINE_RESOURCE: 1},
                runtime_env=WITHOUT,
            )
            .remote(self._spec, self._key)
        )
        self._pod, self._machine = await self._call("place")
        fingerprint: str = await self._call("start", log)
        self._runs = True
        return fingerprint

    async def ended(self) -> str:
        why: str = await self._call("ended")
        self._runs = False
        return why

    async def end(self) -> None:
        actor, self._actor, self._runs, self._machine = self._actor, None, False, ""
        if actor is None:
            return
        import ray

        try:
            with contextlib.suppress(ray.exceptions.RayError, TimeoutError):
                if self._pod:  # otherwise it is not there yet, and has started nothing
                    async with asyncio.timeout(_END_SECONDS):
                        await actor.end.remote()
        finally:  # also if this is cancelled: an actor that is left would keep the pod's GPUs
            ray.kill(actor)

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float) -> tuple[int, str]:
        answer: tuple[int, str] = await self._sent(seconds, "ask", method, path, body, seconds)
        return answer

    async def deliver(self, folder: Path, files: Any, kept: Collection[str]) -> PurePath:
        return PurePath(await self._sent(_DELIVERY_SECONDS, "deliver", folder.name, files, list(kept)))

    async def _sent(self, seconds: float, method: str, *arguments: Any) -> Any:
        """Call the actor of an engine that runs.

        Raises:
            UnreachableError: none runs, or it did not answer.
        """
        from ray.exceptions import RayError, RayTaskError

        if self._actor is None or not self._runs:
            raise UnreachableError(f"{self.url} does not run now")
        try:
            async with asyncio.timeout(seconds + _LATE_SECONDS):
                return await _cancelled_with_us(getattr(self._actor, method).remote(*arguments))
        except TimeoutError:
            raise UnreachableError(f"{self.url} in {self.where} took more than {seconds:g} s") from None
        except RayTaskError as error:
            said = error.cause if isinstance(error.cause, ServerError) else last_exception(str(error))
            raise UnreachableError(f"{self.url} in {self.where}: {said}") from None
        except RayError as error:
            raise UnreachableError(f"{self.url} in {self.where} cannot be reached ({type(error).__name__})") from None

    async def _call(self, method: str, *arguments: Any) -> Any:
        """Call the actor while it starts or runs. Raises what `EnginePlace` names."""
        from ray.exceptions import RayError, RayTaskError

        try:
            return await self._unless_lost(getattr(self._actor, method).remote(*arguments))
        except RayTaskError as error:
            if isinstance(error.cause, LorarlError | OSError):
                raise error.cause from None
            raise WorkerError(f"failed: {last_exception(str(error))}") from error
        except RayError as error:
            self._runs = False
            raise await self._behind(type(error).__name__) from None

    async def _behind(self, failure: str) -> PlaceLostError | WorkerError:
        """Return what is behind a failure that Ray names: the loss of the machine, or the actor's own end."""
        if self._machine:
            try:
                async with asyncio.timeout(NODE_LOSS_SECONDS):
                    await loss_of(frozenset([self._machine]))
            except TimeoutError:
                return WorkerError(f"has ended with its process in the pod, which is still there ({failure})")
        self._machine = ""
        return PlaceLostError(failure)

    async def _unless_lost(self, call: Any) -> Any:
        """Wait for a call. Raise what says that its machine is lost, in case Ray leaves the call without an answer."""
        if not self._machine:
            return await call
        answer: asyncio.Future[Any] = asyncio.ensure_future(call)
        loss = asyncio.create_task(loss_of(frozenset([self._machine])))
        try:
            await asyncio.wait((answer, loss), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise await loss
            return answer.result()
        finally:
            answer.cancel()
            loss.cancel()


async def _cancelled_with_us(call: Any) -> Any:
    """Wait for a call of an actor, and cancel it if this is cancelled: vLLM then ends the request too."""
    import ray

    try:
        return await call
    except asyncio.CancelledError:
        if ray.is_initialized():
            ray.cancel(call)
        raise
