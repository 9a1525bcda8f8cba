"""Engines on GPUs that the trainer does not use: servers of vLLM that a run starts, starts again, and ends.

What generates with them is `servers/`, as with servers that somebody else started: each proves every version. One that
is killed is left out there, and takes requests again once it has proven the newest version. `engine_places.py` says
where they run.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import aiohttp

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.errors import EnginesLostError, LorarlError, RolloutServerError, WorkerError, in_one_line
from lorarl_trainer.launch.engine_command import ENGINES
from lorarl_trainer.launch.engine_places import ROUND_SECONDS, EnginePlace, Here, PlaceLostError
from lorarl_trainer.launch.engine_pods import InPod
from lorarl_trainer.planning.separate import sequences_at_once
from lorarl_trainer.servers.client import VllmServer
from lorarl_trainer.servers.faults import ServerError, UnreachableError
from lorarl_trainer.servers.key import ServerKey
from lorarl_trainer.servers.origin import Origin
from lorarl_trainer.servers.reach import Reach, open_session
from lorarl_trainer.storage.base_model import changed_meanwhile

RESTARTS, WINDOW_SECONDS = 5, 3600.0
"""An engine is started again at most so often within this time."""
_ANSWER_SECONDS = 30.0
_PAUSE_SECONDS = 1.0
"""Before another place is looked for."""


@dataclass(eq=False)
class _Engine:
    """One engine.

    Attributes:
        number: by which people know it, from 0.
        place: where it runs.
        answered: whether it has ever answered.
        restarts: when it was started again. The loss of its place does not count.
        losses: how often it has lost its place since it last answered.
        fingerprint: of the base model that it fetched; None where it has the trainer's files.
        is_given_up: whether it has ended too often.
        life: runs it to the end of the run, or until it is given up.
    """

    number: int
    place: EnginePlace
    answered: bool = False
    restarts: list[float] = field(default_factory=list)
    losses: int = 0
    fingerprint: str | None = None
    is_given_up: bool = False
    life: asyncio.Task[None] | None = None

    @property
    def log(self) -> str:
        """The file of this start. Each has its own: the one before says why it ended."""
        again = f"-restart-{len(self.restarts)}" if self.restarts else ""
        return f"engine-{self.number}{again}.log"

    def may_restart(self, now: float) -> bool:
        """Whether it has not been started again too often of late."""
        return sum(now - at < WINDOW_SECONDS for at in self.restarts) < RESTARTS


class SeparateEngines:
    """All separate engines of a run."""

    def __init__(
        self,
        spec: LoRARLJobSpec,
        places: Sequence[EnginePlace],
        key: str,
        if_gone: str,
        warn: Callable[[str], None],
        *,
        in_pods: bool = False,
    ) -> None:
        """Start nothing yet.

        Args:
            spec: the job.
            places: that of each engine.
            key: what engines want from their clients.
            if_gone: what a person can do if none is left.
            warn: takes what the user should know about an engine.
            in_pods: whether they are on other machines than the workers, which adapters are sent to.
        """
        self._spec, self._key, self._if_gone, self._warn = spec, key, if_gone, warn
        self._engines = [_Engine(number, place) for number, place in enumerate(places)]
        self._fail: Callable[[RolloutServerError], None] = lambda _: None
        self._patience = spec.rollout.effective_server_timeout
        self._fingerprint: str | None = None
        self._has_ended = False
        self._trains = False
        """Whether the training continues without an engine that has not answered yet."""
        self.in_pods = in_pods

    @classmethod
    def here(
        cls, spec: LoRARLJobSpec, gpus: Sequence[Sequence[str]], log_dir: Path, warn: Callable[[str], None]
    ) -> Self:
        """Return engines that are processes beside this one, given the GPUs of each, and a folder for their output."""
        key = secrets.token_hex(16)
        if_gone = f"What they print is in {log_dir}. Run the same command again: the next start resumes."
        return cls(spec, [Here(spec, own, key, log_dir) for own in gpus], key, if_gone, warn)

    @classmethod
    def of_pods(cls, spec: LoRARLJobSpec, warn: Callable[[str], None]) -> Self:
        """Return engines that have own pods in the job's RayCluster."""
        engines, key = spec.separate_engines, secrets.token_hex(16)
        assert engines is not None, "the job has separate engines"
        places = [InPod(spec, number, key) for number in range(engines.count)]
        if_gone = (
            "What they print is in the logs of their pods (label lorarl.io/role=engine). The next attempt resumes."
        )
        return cls(spec, places, key, if_gone, warn, in_pods=True)

    @property
    def origin(self) -> Origin:
        """The engines as servers."""
        return Origin(
            field=ENGINES,
            urls=tuple(engine.place.url for engine in self._engines),
            key=ServerKey(self._key),
            at_once=sequences_at_once(self._spec),
            if_wrong=f"Remove {ENGINES}, so that engines in the workers generate, and please report this with the "
            "model's config.json",
            if_gone=self._if_gone,
            reach=self._reach,
            takes_files=self.in_pods,
            are_lost=self._are_lost,
        )

    def _are_lost(self) -> bool:
        """Whether the loss of places is what left none: of all engines that are not given up."""
        left = [engine for engine in self._engines if not engine.is_given_up]
        return bool(left) and all(engine.losses for engine in left)

    def _reach(self, url: str, session: aiohttp.ClientSession) -> Reach:
        [place] = [engine.place for engine in self._engines if engine.place.url == url]
        return place.reach(session)

    def start(self, model: Path | None) -> None:
        """Start all, unless the run has ended meanwhile. `model`: see `EnginePlace`."""
        if self._has_ended:
            return
        for engine in self._engines:
            engine.life = asyncio.create_task(self._run(engine, model))
            engine.life.add_done_callback(self._over)

    def _over(self, life: asyncio.Task[None]) -> None:
        """End the run if an engine's life fails unforeseen. Until the training begins, `ready` raises the failure."""
        if not life.cancelled() and (error := life.exception()):
            self._fail(RolloutServerError(f"{ENGINES}: {in_one_line(error)}"))

    async def ready(self, fail: Callable[[RolloutServerError], None], fingerprint: str) -> None:
        """Wait until all have answered once. From then on, one that ends is started again.

        After `rollout.serverTimeoutSeconds`, those that have answered are enough. The others join them later.

        Args:
            fail: is called when all have ended too often.
            fingerprint: of the workers' base model.

        Raises:
            EnginesLostError: none has answered, and none has had a place for as long.
            LorarlError: one ended before it answered, with what it said, or could not be started.
        """
        self._fail, self._fingerprint = fail, fingerprint
        for engine in self._engines:
            self._require_same_model(engine)
        began = found = time.monotonic()
        while not self._trains and (waiting := [engine for engine in self._engines if not engine.answered]):
            for engine in waiting:
                assert engine.life is not None, "it has been started"
                if engine.life.done():
                    engine.life.result()
            now = time.monotonic()
            found = now if any(engine.place.is_found for engine in waiting) else found
            if len(waiting) < len(self._engines) and now - began >= self._patience:
                self._warn(self._without(waiting))
                break
            if now - found >= self._patience:
                raise EnginesLostError(
                    f"{ENGINES}: no engine has had a pod for rollout.serverTimeoutSeconds, {self._patience:g} s. "
                    f"{self._if_gone}"
                )
            await asyncio.sleep(ROUND_SECONDS)
        self._trains = True
        self._require_one()

    def _without(self, waiting: Sequence[_Engine]) -> str:
        numbers = ", ".join(str(engine.number) for engine in waiting)
        return (
            f"{ENGINES}: the training begins without engine {numbers}, which has not answered within "
            f"rollout.serverTimeoutSeconds, {self._patience:g} s. It gets requests once it does"
        )

    async def _serve(self, engine: _Engine, model: Path | None) -> str:
        """Start an engine in a place; return why it ended there. See `EnginePlace` for the errors."""
        engine.fingerprint = await engine.place.start(model, engine.log)
        self._require_same_model(engine)
        answers = asyncio.create_task(self._answers(engine))
        try:
            return await engine.place.ended()
        finally:
            answers.cancel()

    async def _answers(self, engine: _Engine) -> None:
        """Note that an engine answers, as soon as it does."""
        async with open_session(ServerKey(self._key)) as session:
            client = VllmServer(engine.place.reach(session), _ANSWER_SECONDS)
            while True:
                try:
                    await client.models()
                    break
                except UnreachableError:
                    await asyncio.sleep(ROUND_SECONDS)
                except ServerError:  # an answer too, which is for the pool to judge
                    break
        engine.answered, engine.losses = True, 0

    def _require_same_model(self, engine: _Engine) -> None:
        """Raise LorarlError if an engine has fetched another base model than the workers."""
        if engine.fingerprint and self._fingerprint not in (None, engine.fingerprint):
            raise changed_meanwhile(self._spec)

    async def _run(self, engine: _Engine, model: Path | None) -> None:
        """Run an engine, and start it again when it has ended, until that was too often.

        Raises:
            LorarlError: it ended before it answered, and the training waits for it.
        """
        place = engine.place
        while True:
            try:
                why = await self._serve(engine, model)
            except PlaceLostError as lost:
                self._warn(f"{ENGINES}: engine {engine.number} lost its {place.where} ({lost}). It starts in another")
                engine.losses += 1
                if self._is_awaited(engine) and engine.losses >= RESTARTS:
                    again = f"engine {engine.number} lost its {place.where}, the {_ordinal(RESTARTS)} one"
                    raise EnginesLostError(f"{ENGINES}: {again} before it answered") from None
                await place.end()
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            except WorkerError as error:
                why = str(error)
            except (LorarlError, OSError) as error:  # a full disk takes no log
                if isinstance(error, LorarlError) and self._is_awaited(engine):
                    raise
                why = f"cannot be started ({error})"
            if self._is_awaited(engine):
                raise RolloutServerError(f"{ENGINES}: engine {engine.number} {why}")
            told = f"{ENGINES}: engine {engine.number} ({place.where}) {why}"
            await place.end()  # vLLM's core is a process beside it, which may be left and keeps the GPU
            if not engine.may_restart(now := time.monotonic()):
                self._warn(f"{told}. It was started again {RESTARTS} times within an hour, and is given up")
                engine.is_given_up = True
                self._require_one()
                return
            engine.restarts.append(now)
            self._warn(f"{told}. It is started again, for the {_ordinal(len(engine.restarts))} time in this run")

    def _is_awaited(self, engine: _Engine) -> bool:
        """Whether the training waits for its first answer."""
        return not (engine.answered or self._trains)

    def _require_one(self) -> None:
        """End the run if all engines are given up."""
        if all(engine.is_given_up for engine in self._engines):
            self._fail(RolloutServerError(f"{ENGINES}: no engine is left. {self._if_gone}"))

    async def end(self) -> None:
        """End all, and what they have started. None is started after that."""
        self._has_ended = True
        lives = [engine.life for engine in self._engines if engine.life]
        for life in lives:
            life.cancel()
        await asyncio.gather(*lives, return_exceptions=True)
        await asyncio.gather(*(engine.place.end() for engine in self._engines))


def _ordinal(number: int) -> str:
    """Return 1st, 2nd, 3rd, 4th ... 11th ... 21st."""
    last = 0 if number % 100 in (11, 12, 13) else number % 10
    return f"{number}{({1: 'st', 2: 'nd', 3: 'rd'}).get(last, 'th')}"
