"""The program of an agent: it imports a user's function once, and each episode is one call of it in a fork of itself.

It runs as `worker.py` beside it does. The function calls the model through a server of the trainer's, with any client.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from lorarl_trainer.rewards.environment.worker import REWARD, awaited, failed, main
from lorarl_trainer.rewards.worker import RefusedError, check, load_named


class Llm(NamedTuple):
    """How an agent reaches the model that is trained.

    Attributes:
        base_url: root of a server that speaks OpenAI's API, with /v1 at its end.
        api_key: of this episode; what it asks is recorded as the episode's.
        model: the name of the model there.
    """

    base_url: str
    api_key: str
    model: str


class Agent:
    """A function that plays episodes.

    Attributes:
        about: what the trainer is to know of it.
    """

    def __init__(self, name: str, function: Callable[..., Any], about: Any = None) -> None:
        """Play with a function of this name."""
        self._name, self._function, self.about = name, function, about

    def __call__(self) -> Agent:
        """Return the player of an episode, which is its own process."""
        return self

    def play(
        self, row: Mapping[str, Any], base_url: str, key: str, model: str, loop: asyncio.AbstractEventLoop
    ) -> dict[str, Any]:
        """Return the reward of an episode, and its components."""
        os.environ |= {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": key}
        for name in ("no_proxy", "NO_PROXY"):  # a proxy leads elsewhere
            os.environ[name] = ",".join(filter(None, [os.environ.get(name), urlsplit(base_url).hostname]))
        returned = self._function(row, Llm(base_url, key, model))
        if inspect.isawaitable(returned):
            returned = loop.run_until_complete(awaited(returned))
        value, cause, message, numbers = check(returned, REWARD)
        if cause is not None:
            return failed(cause, f"{self._name} {message}")
        return {REWARD: value, "components": dict(numbers)}


def load_agent(name: str, places: Sequence[str], source: str) -> Agent:
    """Import a function and check that it takes a row and an `Llm`.

    Raises:
        RefusedError: it does not; see `load_named` for the arguments.
    """
    own = name.partition(":")[2]
    define = f"Define it as def {own}(row, llm), which returns the episode's reward."
    function, where = load_named(name, places, source, define)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise RefusedError(f"{name} in {where}, which is a generator and returns no number", "Use return.")
    try:
        inspect.signature(function).bind("row", "llm")
    except TypeError as error:
        raise RefusedError(f"{name} in {where}, which cannot be called with two arguments", define) from error
    except ValueError:  # some functions written in C have no readable signature
        pass
    return Agent(own, function)


if __name__ == "__main__":
    main(load_agent)
