"""A job's environment in pods of `cluster.environments`, as the driver has it: an actor of Ray in each of them.

`pod_episode.py` plays an episode in one of them after another.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from lorarl_api.environment_pods import ENVIRONMENT_RESOURCE
from lorarl_api.v1alpha1 import EnvironmentPodsSpec, EnvironmentSpec
from lorarl_trainer.errors import EnvironmentsLostError, InputError, LorarlError, in_one_line
from lorarl_trainer.install.locks import installed_version
from lorarl_trainer.launch.engine_places import PlaceLostError
from lorarl_trainer.launch.environment_actor import PACKAGE, EnvironmentActor, PackedCode
from lorarl_trainer.launch.pod_episode import PODS, Pod, PodEpisode
from lorarl_trainer.rewards.environment.environment import Environment
from lorarl_trainer.rewards.environment.playing import OpenEpisode, Plays
from lorarl_trainer.rewards.output import Output
from lorarl_trainer.rewards.process import CodeFolders
from lorarl_trainer.threads import in_background
from lorarl_trainer.workers.ahead import WITHOUT
from lorarl_trainer.workers.nodes import loss_of

MOST_FAILED_STARTS = 5
"""So often in a row may an actor end before it has imported the user's code."""
PATIENCE_SECONDS = 600.0
"""How long episodes wait for a pod when all are gone, and the first ones at the start."""
_PAUSE_SECONDS = 1.0


class PodEnvironment(Plays):
    """Plays episodes in whichever pod has the fewest."""

    def __init__(self, spec: EnvironmentSpec, code: CodeFolders, replicas: int, warn: Callable[[str], None]) -> None:
        """Start nothing yet.

        Args:
            spec: the environment's.
            code: where the user's code is here; what is of a source is brought to the pods.
            replicas: how many pods there are.
            warn: takes what the user should know of a pod.
        """
        self._spec, self._code, self._replicas, self._warn = spec, code, replicas, warn
        self._pods: list[Pod] = []
        self._started, self._news = asyncio.Event(), asyncio.Event()
        self._packed: PackedCode | None = None
        self._failure: LorarlError | None = None
        self._told: tuple[list[dict[str, Any]], int | None] = [], None
        self._numbers = itertools.count()

    @contextlib.asynccontextmanager
    async def running(self, ray: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
        """Keep an actor in each pod within the block. They start when `ray` returns: Ray is connected then."""
        lives = asyncio.create_task(self._live(ray))
        lives.add_done_callback(self._over)
        try:
            yield
        finally:
            lives.cancel()
            await asyncio.gather(lives, return_exceptions=True)

    async def _live(self, ray: Callable[[], Awaitable[object]]) -> None:
        await ray()
        self._packed = await in_background(PackedCode.of, self._code)
        self._started.set()
        async with asyncio.TaskGroup() as group:
            for _ in range(self._replicas):
                group.create_task(self._in_one_pod())

    def _over(self, lives: asyncio.Task[None]) -> None:
        """End the run if something unforeseen ends the actors."""
        if not lives.cancelled() and (error := lives.exception()):
            self._fail(LorarlError(f"{PODS}: {in_one_line(error)}"))
            self._started.set()

    async def _in_one_pod(self) -> None:
        """Keep one actor running, in whichever pod is free. A failure ends the run."""
        failed = 0
        while True:
            pod = Pod(self._new_actor())
            try:
                await self._play_in(pod)
            except PlaceLostError as lost:
                if pod in self._pods:
                    failed = 0
                    self._warn(f"{PODS}: {pod.name} is lost ({lost}). Its episodes are played again in another one")
                elif (failed := failed + 1) >= MOST_FAILED_STARTS:
                    told = f"{PODS}: its actor ended {failed} times before it was ready, now in {pod.name} ({lost})"
                    self._fail(EnvironmentsLostError(f"{told}. The logs of these pods may say why."))
                    return
            except LorarlError as error:
                self._fail(error)
                return
            finally:
                with contextlib.suppress(ValueError):
                    self._pods.remove(pod)
                await pod.end()
            await asyncio.sleep(_PAUSE_SECONDS)

    def _new_actor(self) -> Any:
        import ray

        options = {"num_cpus": 0, "num_gpus": 0, "resources": {ENVIRONMENT_RESOURCE: 1}, "runtime_env": WITHOUT}
        kind = ray.remote(EnvironmentActor).options(**options, max_concurrency=2 * self._spec.concurrency + 8)
        return kind.remote(self._spec, self._packed)

    async def _play_in(self, pod: Pod) -> None:
        """Import the user's code in a pod, and let episodes in, until it is lost, which this raises.

        Raises:
            InputError: the code cannot be imported, or the image is of another lorarl.
        """
        pod.place = place = await pod.ask(pod.send("place"))
        if (ours := installed_version(PACKAGE)) != place.version:
            got, expected = f"an image with lorarl {place.version}", f"one with the trainer's, {ours}"
            raise InputError(f"{PODS}.image", got, expected, f"Build it again, FROM lorarl's trainer image {ours}.")
        watch = asyncio.create_task(_watch(pod, place.machine))
        try:
            self._told = await pod.ask(pod.send("ready"))
            self._pods.append(pod)
            self._tell()
            await pod.ask(pod.send("ended"))
        finally:
            watch.cancel()

    def _tell(self) -> None:
        """Wake all that wait for a pod."""
        self._news.set()
        self._news = asyncio.Event()

    def _fail(self, failure: LorarlError) -> None:
        self._failure = self._failure or failure
        self._tell()

    async def free(self) -> Pod:
        """Return the pod with the fewest episodes; wait for one if there is none.

        Raises:
            EnvironmentsLostError: none comes in time.
            LorarlError: none can play.
        """
        with_patience = asyncio.timeout(PATIENCE_SECONDS)
        try:
            async with with_patience:
                while True:
                    if self._failure is not None:
                        raise self._failure
                    if there := [pod for pod in self._pods if not pod.is_lost]:
                        return min(there, key=lambda pod: pod.episodes)
                    await self._news.wait()
        except TimeoutError:
            told = f"{PODS}: no pod has been there for {PATIENCE_SECONDS:g} s. The next attempt resumes."
            raise EnvironmentsLostError(told) from None

    @property
    def tools(self) -> list[dict[str, Any]]:
        return self._told[0]

    @property
    def tasks(self) -> int | None:
        return self._told[1]

    @property
    def named(self) -> str:
        return self._spec.world[1] if self._spec.world else ", ".join(self._spec.functions)

    @property
    def sees_us_at(self) -> str:
        import ray

        address: str = ray.util.get_node_ip_address()
        return address

    def warm_up(self) -> None:
        """Wait for `running`: there is no pod yet."""

    async def ready(self) -> None:
        await self._started.wait()
        await self.free()

    @contextlib.asynccontextmanager
    async def episode(self, seed: int) -> AsyncIterator[OpenEpisode]:
        episode = PodEpisode(self._numbers, seed, self.free)
        try:
            await episode.begin()
            yield episode
        finally:
            episode.end()

    def close(self) -> None:
        """Do nothing: `running` has ended all."""


async def _watch(pod: Pod, machine: str) -> None:
    """Lose a pod when its machine is lost: Ray may leave a call to it without an answer."""
    pod.lose(str(await loss_of(frozenset([machine]))))


def environment_of(
    pods: EnvironmentPodsSpec | None, warn: Callable[[str], None]
) -> Callable[[EnvironmentSpec, CodeFolders, Output | None], Plays]:
    """Return what makes a job's environment: in pods if it has any, otherwise here."""
    if pods is None:
        return Environment
    return lambda spec, code, _: PodEnvironment(spec, code, pods.replicas, warn)


def kept_in_pods(
    environment: Plays | None, ray: Callable[[], Awaitable[object]]
) -> contextlib.AbstractAsyncContextManager[None]:
    """Keep an environment's actors running within the block, if it plays in pods: see `PodEnvironment.running`."""
    return environment.running(ray) if isinstance(environment, PodEnvironment) else contextlib.nullcontext()
