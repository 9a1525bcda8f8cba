"""A pod of `cluster.environments`, as the driver has it, and an episode that moves to another one if it is lost.

An episode whose pod is lost is played again in another one, as far as it was: with the same seed and the same turns of
the model, which are not generated again. If the environment then answers as before, the episode continues.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from lorarl_trainer.data.cells import Prompt
from lorarl_trainer.errors import LorarlError, last_exception
from lorarl_trainer.launch.engine_places import PlaceLostError
from lorarl_trainer.launch.environment_actor import Place, Reply
from lorarl_trainer.rewards.environment.playing import Answer, EpisodeFailedError, Result
from lorarl_trainer.rewards.environment.worker import CALL, PLAY, RESET, STEP

PODS = "spec.cluster.environments"
MOST_LOSSES = 3
"""So many pods may an episode lose. It may be what ends them, as by their memory."""
_END_SECONDS = 10.0
"""For an environment's processes to end, before their actor is killed."""


class Pod:
    """An actor in a pod, from its start to its loss.

    Attributes:
        place: where it is; None until it runs.
        episodes: how many it plays.
    """

    def __init__(self, actor: Any) -> None:
        self._actor, self._lost, self._why = actor, asyncio.Event(), ""
        self.place: Place | None = None
        self.episodes = 0

    @property
    def name(self) -> str:
        """The name of the pod, for people."""
        return f"pod {self.place.pod}" if self.place else "pod"

    @property
    def is_lost(self) -> bool:
        """Whether nothing can be played here any more."""
        return self._lost.is_set()

    def lose(self, why: str) -> None:
        """Let all calls that wait fail, and those that come."""
        self._why = self._why or why
        self._lost.set()

    def send(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call the actor without waiting for it; return Ray's reference to what comes of it."""
        return getattr(self._actor, method).remote(*arguments, **options)

    async def ask(self, call: Any) -> Any:
        """Wait for a call that was sent.

        Raises:
            PlaceLostError: the actor or its machine is lost, or was before the call was answered.
            Exception: what the actor has raised.
        """
        from ray.exceptions import RayError, RayTaskError

        answer, lost = asyncio.ensure_future(_of(call)), asyncio.create_task(self._lost.wait())
        try:
            await asyncio.wait((answer, lost), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise PlaceLostError(self._why)
            return answer.result()
        except RayTaskError as error:
            if isinstance(error.cause, LorarlError):
                raise error.cause from None
            raise LorarlError(f"{PODS}: {self.name}: {last_exception(str(error))}") from error
        except RayError as error:
            self.lose(type(error).__name__)
            raise PlaceLostError(self._why) from None
        finally:
            answer.cancel()
            lost.cancel()

    async def end(self) -> None:
        """End the actor with all episodes that it plays."""
        import ray

        try:
            if not self.is_lost and self.place:
                async with asyncio.timeout(_END_SECONDS):
                    await self.ask(self.send("close"))
        except (PlaceLostError, LorarlError, TimeoutError):
            pass  # it is killed in any case
        finally:
            self.lose("it was ended")
            ray.kill(self._actor)


async def _of(call: Any) -> Any:
    return await call


class PodEpisode:
    """One episode, in one pod at a time. See `OpenEpisode`."""

    def __init__(self, numbers: Iterator[int], seed: int, free: Callable[[], Awaitable[Pod]]) -> None:
        """Begin nothing yet.

        Args:
            numbers: yields numbers that no other episode has.
            seed: of its global random numbers.
            free: waits for a pod that has room.
        """
        self._numbers, self._seed, self._free = numbers, seed, free
        self._history: list[tuple[str, tuple[Any, ...], Any]] = []  # what was asked, and what was said
        self._losses: list[str] = []
        self._pod: Pod | None = None
        self._number, self._begun = 0, None
        self._turns, self._clock = 0, itertools.count()
        self.seconds = 0.0

    async def begin(self) -> None:
        """Begin in a pod that has room; repeat there what has been played. Raises EpisodeFailedError."""
        while True:
            try:
                return await self._begin()
            except PlaceLostError as lost:
                self._lose(lost)

    async def _begin(self) -> None:
        self.end()
        self._pod = pod = await self._free()
        pod.episodes += 1
        self._number = next(self._numbers)
        self._begun = pod.send("begin", self._number, self._seed)
        _value_of(await pod.ask(self._begun))
        for method, given, said in self._history:
            if await self._asked(method, given) != said:
                told = f"its pod was lost ({self._losses[-1]}), and {method} answers otherwise when it is played again"
                raise EpisodeFailedError("crash", told)

    def _lose(self, lost: PlaceLostError) -> None:
        """Note a loss. Raises EpisodeFailedError if there were too many."""
        assert self._pod is not None, "it was in a pod"
        self._losses.append(f"{self._pod.name}: {lost}")
        if len(self._losses) >= MOST_LOSSES:
            raise EpisodeFailedError("crash", f"{MOST_LOSSES} pods were lost while they played it; {self._losses[-1]}")

    def end(self) -> None:
        """End the episode in its pod, without waiting for that."""
        pod, self._pod = self._pod, None
        if pod is not None:
            pod.episodes -= 1
            if not pod.is_lost:
                pod.send("end", self._number, self._begun)

    async def reset(self, row: Mapping[str, Any]) -> Prompt:
        opening: Prompt = await self._call(RESET, row)
        return opening

    async def step(self, text: str) -> Answer:
        answer: Answer = await self._call(STEP, text)
        return answer

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Result:
        result: Result = await self._call(CALL, name, arguments)
        return result

    async def play(self, row: Mapping[str, Any], base_url: str, key: str, model: str) -> Answer:
        try:
            answer: Answer = await self._asked(PLAY, (row, base_url, key, model))
        except PlaceLostError as lost:  # the agent has asked for turns, which it would ask for once more
            assert self._pod is not None, "it was in a pod"
            raise EpisodeFailedError("crash", f"{self._pod.name} was lost while the agent played: {lost}") from None
        return answer

    @contextlib.contextmanager
    def waits_for_the_model(self) -> Iterator[None]:
        self._turns += 1
        if self._turns == 1:
            self._tell_clock(stops=True)
        try:
            yield
        finally:
            self._turns -= 1
            if not self._turns:
                self._tell_clock(stops=False)

    def _tell_clock(self, *, stops: bool) -> None:
        if self._pod is not None and not self._pod.is_lost:
            self._pod.send("clock", self._number, next(self._clock), stops=stops)

    async def _call(self, method: str, *given: Any) -> Any:
        while True:
            try:
                said = await self._asked(method, given)
                break
            except PlaceLostError as lost:
                self._lose(lost)
                await self.begin()
        self._history.append((method, given, said))
        return said

    async def _asked(self, method: str, given: tuple[Any, ...]) -> Any:
        assert self._pod is not None, "it has begun"
        reply: Reply = await self._pod.ask(self._pod.send("answer", self._number, method, given))
        self.seconds += reply.seconds
        return _value_of(reply)


def _value_of(reply: Reply) -> Any:
    """Return what the environment said. Raises EpisodeFailedError if it failed."""
    if reply.failure is not None:
        raise EpisodeFailedError(*reply.failure)
    return reply.value
