"""One server of a job's, and how an adapter version gets to it."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from lorarl_trainer.samples.sample import Completion
from lorarl_trainer.servers.client import Answer, Model, VllmServer
from lorarl_trainer.servers.faults import RefusedKeyError, ServerError, UnknownAdapterError, UnreachableError


@dataclass(frozen=True)
class Version:
    """An adapter version that servers can read.

    Attributes:
        number: the trainer's.
        name: by which servers know it. No other version has had it, also not of an earlier start.
        folder: with its files, as the workers see it.
        files: Ray's reference to them, for servers that do not see the folder.
    """

    number: int
    name: str
    folder: Path
    files: Any = None


@dataclass(eq=False)
class Server:
    """One server.

    Attributes:
        longest: tokens that a prompt and its completion may have together.
        versions: that it may have to generate with at a time.
        serves: it has proven the newest version since it loaded it, so it gets requests.
        why_not: what it did last instead.
        seen: the folder of the versions, as it sees it; None before the first one.
    """

    client: VllmServer
    longest: int
    versions: int = 1
    serves: bool = False
    why_not: ServerError | None = None
    seen: PurePath | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return self.client.url

    @property
    def may_return(self) -> bool:
        """Whether it did not answer, has lost the adapter, as when it starts again, or wants another key."""
        return isinstance(self.why_not, UnreachableError | UnknownAdapterError | RefusedKeyError)

    @property
    def is_wrong(self) -> bool:
        """Whether what it did needs a person, at the start of a run."""
        return self.why_not is not None and not isinstance(self.why_not, UnreachableError | UnknownAdapterError)

    async def bring(
        self, version: Version, prove: Callable[[Server], Awaitable[None]], in_use: Collection[str] = ()
    ) -> None:
        """Let it serve a version: forget the versions before, load this one, and prove it.

        Args:
            version: the newest.
            prove: asks for completions and compares them with the trainer.
            in_use: names of earlier versions that requests are still generated with. They stay.

        Raises:
            ServerError: it cannot, or is not proven.
        """
        models = await self.client.models()
        longest = max((model.longest or 0 for model in models), default=0)
        if 0 < longest < self.longest:
            raise ServerError(
                f"{self.url} takes at most {longest:,} tokens of a prompt and its completion, expected "
                f"{self.longest:,} (rollout.maxPromptTokens + rollout.maxResponseTokens). "
                f"Start the server with --max-model-len {self.longest} or more."
            )
        folder = await self.client.deliver(version.folder, version.files, in_use)
        self.seen = folder.parent
        await self._forget(models, {version.name, *in_use})
        if all(model.name != version.name for model in models):
            await self.client.load(version.name, folder)
        await prove(self)
        if self.versions > 1:
            await self._require_slots()

    async def forget_all(self) -> None:
        """Unload all versions. Raises ServerError if it does not answer."""
        await self._forget(await self.client.models(), ())

    async def _forget(self, models: Collection[Model], kept: Collection[str]) -> None:
        for model in models:
            if model.parent and model.name not in kept and PurePath(model.root).parent == self.seen:
                with contextlib.suppress(ServerError):  # it is forgotten already, or with the next version
                    await self.client.unload(model.name)

    async def _require_slots(self) -> None:
        """Raise ServerError if it generates with fewer adapters at a time than it may be asked for."""
        slots = await self.client.slots()
        if slots is not None and slots < self.versions:
            raise ServerError(
                f"{self.url} generates with {slots} adapter(s) at a time, expected {self.versions} "
                "(rollout.maxStaleness + 1), since requests of earlier steps end with the adapter they began with. "
                f"Start the server with --max-loras {self.versions} or more."
            )

    async def generate(self, version: Version, tokens: list[int], sampling: dict[str, Any]) -> Completion:
        """Return a completion by a version.

        Raises:
            ServerError: it makes none, or names another model in its answer.
        """
        answer: Answer = await self.client.generate(version.name, tokens, sampling)
        if answer.model != version.name:
            raise ServerError(
                f"{self.url} answers by the model {answer.model}, expected {version.name}, which was asked for"
            )
        return Completion(answer.tokens, answer.logprobs, answer.finished, version.number)
